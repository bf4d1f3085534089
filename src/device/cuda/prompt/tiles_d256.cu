#include "device/cuda/prompt/launch_tiles.cuh"

namespace kvant::cuda {

template cudaError_t launch_half_tiles<256>(const PromptArgs&, const PromptLaunch&, int);

}  // namespace kvant::cuda
