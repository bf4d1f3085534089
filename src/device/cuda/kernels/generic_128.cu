#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/generic/generic.cuh"

namespace kvant::cuda {

DecodeKernel generic_kernel_128() {
  return decode_entry<GenericPair<128>, 128>(nullptr, nullptr, nullptr);
}

}  // namespace kvant::cuda
