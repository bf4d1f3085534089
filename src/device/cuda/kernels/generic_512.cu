#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/generic/generic.cuh"

namespace kvant::cuda {

DecodeKernel generic_kernel_512() {
  return decode_entry<GenericPair<512>, 512>(nullptr, nullptr, nullptr);
}

}  // namespace kvant::cuda
