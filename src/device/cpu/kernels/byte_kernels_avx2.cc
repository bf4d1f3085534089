// Implements the kernels with AVX2, FMA and F16C, for processors without products of bytes.
#include "device/cpu/kernels/byte_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace {

#include "device/cpu/kernels/byte_kernels_body.h"
#include "device/cpu/kernels/byte_lanes_avx2.h"

}  // namespace

namespace kvant::cpu {

const ByteKernels* avx2_kernels() {
  static constexpr ByteKernels kernels = kernels_of<Avx2>("avx2");
  return &kernels;
}

}  // namespace kvant::cpu

#else

namespace kvant::cpu {

const ByteKernels* avx2_kernels() {
  return nullptr;
}

}  // namespace kvant::cpu

#endif
