#include "device/cuda/prompt/launch_integer_mma.cuh"

namespace kvant::cuda {

template PromptSizes integer_mma_sizes<64>(const Gpu&);
template cudaError_t launch_integer_mma<64>(const PromptArgs&, const PromptLaunch&);

}  // namespace kvant::cuda
