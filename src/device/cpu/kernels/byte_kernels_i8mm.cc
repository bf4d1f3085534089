// Implements the kernels with NEON and products of unsigned with signed bytes (Cortex-A510, Neoverse V1,
// Apple M2 and later).
#include "device/cpu/kernels/byte_kernels.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>

namespace {

#include "device/cpu/kernels/byte_kernels_body.h"
#include "device/cpu/kernels/byte_lanes_dotprod.h"

struct MixedProducts {
  static constexpr bool kSignedCodes = false;
  static KVANT_INLINE int32x4_t dot(int32x4_t sums, uint8x16_t codes, int8x16_t numbers) {
    return vusdotq_s32(sums, codes, numbers);
  }
  template <int Lane>
  static KVANT_INLINE int32x4_t dot_lane(int32x4_t sums, uint8x16_t codes, int8x8_t numbers) {
    return vusdotq_lane_s32(sums, codes, numbers, Lane);
  }
};

// A mix multiplies two groups of 8 tokens with the two bytes of 8 weights, a product of matrices.
struct I8mm : ByteProducts<MixedProducts> {
  static constexpr bool kSmallWeights = false;
  static constexpr int kRegistersPerSum = 1, kSumRegisters = 16;
  using MixInts = int32x4_t;  // of both groups, the sum of products with high bytes, then with low bytes
  using Weights = int8x16_t;
  static KVANT_INLINE MixInts no_mix_sums() { return vdupq_n_s32(0); }
  static KVANT_INLINE Weights load_weights(const std::uint64_t* octet) {
    return vreinterpretq_s8_u64(vld1q_u64(octet));
  }
  static KVANT_INLINE void multiply_weights(MixInts& sums, Codes codes, Weights weights) {
    sums = vusmmlaq_s32(sums, codes, weights);
  }
  static KVANT_INLINE void add_octets(MixInts sums, std::int32_t bias, float factor, const float* scale,
                                      float* out, Groups) {
    const int32x4_t shifts = {8, 0, 8, 0};
    add_pairs(vshlq_s32(sums, shifts), bias, factor, scale, out);
  }
};

}  // namespace

namespace kvant::cpu {

const ByteKernels* i8mm_kernels() {
  static constexpr ByteKernels kernels = kernels_of<I8mm>("i8mm");
  return &kernels;
}

}  // namespace kvant::cpu

#else

namespace kvant::cpu {

const ByteKernels* i8mm_kernels() {
  return nullptr;
}

}  // namespace kvant::cpu

#endif
