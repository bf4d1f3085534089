// Tells tests which of the two compilations of the kernels a GPU runs, as the prefix of the kernels' names. A
// tiny kernel reports the architecture that the running code was compiled for.
#pragma once

#include <string>

namespace kvant::cuda {

// Returns "cuda/sm90/" or "cuda/sm80/". Without a GPU, returns "cuda/sm90/".
std::string kernel_path();

}  // namespace kvant::cuda
