// Implements the kernels with NEON and products of four signed bytes (Cortex-A76, Neoverse N1, Apple M1 and
// later).
#include "device/cpu/kernels/byte_kernels.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

namespace {

#include "device/cpu/kernels/byte_kernels_body.h"
#include "device/cpu/kernels/byte_lanes_dotprod.h"

struct SignedProducts {
  static constexpr bool kSignedCodes = true;
  static KVANT_INLINE int32x4_t dot(int32x4_t sums, uint8x16_t codes, int8x16_t numbers) {
    return vdotq_s32(sums, vreinterpretq_s8_u8(codes), numbers);
  }
  template <int Lane>
  static KVANT_INLINE int32x4_t dot_lane(int32x4_t sums, uint8x16_t codes, int8x8_t numbers) {
    return vdotq_lane_s32(sums, vreinterpretq_s8_u8(codes), numbers, Lane);
  }
};

}  // namespace

namespace kvant::cpu {

const ByteKernels* dotprod_kernels() {
  static constexpr ByteKernels kernels = kernels_of<ByteProducts<SignedProducts>>("dotprod");
  return &kernels;
}

}  // namespace kvant::cpu

#else

namespace kvant::cpu {

const ByteKernels* dotprod_kernels() {
  return nullptr;
}

}  // namespace kvant::cpu

#endif
