#include "device/cuda/prompt/launch_mma.cuh"

namespace kvant::cuda {

template PromptSizes mma_prompt_sizes<512>(const Gpu&);
template cudaError_t launch_mma_prompt<512>(const PromptArgs&, const PromptLaunch&);

}  // namespace kvant::cuda
