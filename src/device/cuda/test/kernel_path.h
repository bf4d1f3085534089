// Tells tests which of the two compilations of the kernels a GPU runs, as the prefix of kernels' names. A
// small kernel reports the architecture for which its code was compiled.
#pragma once

#include <string>

namespace kvant::cuda {

// Returns "cuda/sm90/" or "cuda/sm80/". Without a GPU, returns "cuda/sm90/".
std::string kernel_path();

}  // namespace kvant::cuda
