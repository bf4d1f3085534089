// Implements the kernels with NEON, which every processor of arm64 has.
#include "device/cpu/kernels/byte_kernels.h"

#if defined(__aarch64__) && !defined(KVANT_NO_NEON_KERNELS)
#include <arm_neon.h>

namespace {

#include "device/cpu/kernels/byte_kernels_body.h"
#include "device/cpu/kernels/byte_lanes_neon.h"

}  // namespace

namespace kvant::cpu {

const ByteKernels* neon_kernels() {
  static constexpr ByteKernels kernels = kernels_of<Neon>("neon");
  return &kernels;
}

}  // namespace kvant::cpu

#else

namespace kvant::cpu {

const ByteKernels* neon_kernels() {
  return nullptr;
}

}  // namespace kvant::cpu

#endif
