#include "device/cuda/prompt/launch.cuh"

namespace kvant::cuda {

template PromptSizes prompt_sizes<64>(const Gpu&);
template cudaError_t launch_prompt<64>(const PromptArgs&, const PromptLaunch&);

}  // namespace kvant::cuda
