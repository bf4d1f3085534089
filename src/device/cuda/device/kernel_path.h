// For tests: which code a GPU runs, and names of kernels by it.
#pragma once

#include <string>

namespace kvant::cuda {

// "cuda/sm90/" or "cuda/sm80/"; the first where there is no GPU.
std::string kernel_path();

}  // namespace kvant::cuda
