// For tests: which code a GPU runs, and the names of its kernels.
#pragma once

#include <string>

namespace kvant::cuda {

// Returns "cuda/sm90/" or "cuda/sm80/"; the former if there is no GPU.
std::string kernel_path();

}  // namespace kvant::cuda
