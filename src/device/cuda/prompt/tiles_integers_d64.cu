#include "device/cuda/prompt/launch_step_tiles.cuh"

namespace kvant::cuda {

template cudaError_t launch_step_tiles<64>(const PromptArgs&, const PromptLaunch&, int);

}  // namespace kvant::cuda
