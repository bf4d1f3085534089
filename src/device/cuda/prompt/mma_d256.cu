#include "device/cuda/prompt/launch_mma.cuh"

namespace kvant::cuda {

template PromptSizes mma_prompt_sizes<256>(const Gpu&);
template cudaError_t launch_mma_prompt<256>(const PromptArgs&, const PromptLaunch&);

}  // namespace kvant::cuda
