#include "device/cuda/prompt/launch.cuh"

namespace kvant::cuda {

template PromptSizes prompt_sizes<128>(const Gpu&);
template cudaError_t launch_prompt<128>(const PromptArgs&, const PromptLaunch&);

}  // namespace kvant::cuda
