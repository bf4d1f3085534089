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
  static constexpr int kRegistersPerSum = 1, kSumRegisters = 16, kTileRows = 6;
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

// A tile multiplies two quads of two lanes with the two bytes of 8 numbers, a product of matrices. The task's
// quads are a multiple of 4.
template <>
struct TileQuads<I8mm> {
  static constexpr int kQuads = 2;
  // Hold the lanes 0 and 1, and the lanes 2 and 3: of each lane, the sum of products with high bytes, then
  // with low bytes.
  struct Sums {
    int32x4_t first, second;
  };
  struct Codes {
    uint8x16_t first, second;
  };
  static KVANT_INLINE Sums sums_from(std::int32_t number) {
    const int32x4_t sums = {0, number, 0, number};
    return {sums, sums};
  }
  static KVANT_INLINE Codes load(const std::uint8_t* bytes, std::ptrdiff_t quad_bytes) {
    const uint32x4_t quad = vreinterpretq_u32_u8(vld1q_u8(bytes));
    const uint32x4_t next = vreinterpretq_u32_u8(vld1q_u8(bytes + quad_bytes));
    return {vreinterpretq_u8_u32(vzip1q_u32(quad, next)), vreinterpretq_u8_u32(vzip2q_u32(quad, next))};
  }
  static KVANT_INLINE void multiply(Sums& sums, const Codes& codes, const std::uint32_t (*of_row)[2]) {
    const uint8x16_t order = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
    const int8x16_t numbers =
        vreinterpretq_s8_u8(vqtbl1q_u8(vreinterpretq_u8_u32(vld1q_u32(*of_row)), order));
    sums.first = vusmmlaq_s32(sums.first, codes.first, numbers);
    sums.second = vusmmlaq_s32(sums.second, codes.second, numbers);
  }
  static KVANT_INLINE float32x4_t to_floats(const Sums& sums) {
    return I8mm::to_floats({vuzp1q_s32(sums.first, sums.second), vuzp2q_s32(sums.first, sums.second)});
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
