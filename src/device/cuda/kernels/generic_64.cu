#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/generic/generic.cuh"

namespace kvant::cuda {

DecodeKernel generic_kernel_64() {
  return decode_entry<GenericPair<64>, 64>(nullptr, nullptr, nullptr);
}

}  // namespace kvant::cuda
