#include "device/cuda/prompt/launch_half.cuh"

namespace kvant::cuda {

template PromptSizes half_prompt_sizes<64>(const Gpu&);
template cudaError_t launch_half_prompt<64>(const PromptArgs&, const PromptLaunch&);

}  // namespace kvant::cuda
