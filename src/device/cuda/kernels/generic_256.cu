#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/generic/generic.cuh"

namespace kvant::cuda {

DecodeKernel generic_kernel_256() {
  return decode_entry<GenericPair<256>, 256>(nullptr, nullptr, nullptr);
}

}  // namespace kvant::cuda
