// Wraps registers of NEON with products of 16-bit numbers. The files of instruction sets with NEON include
// this header inside their namespaces.
#include "device/cpu/kernels/centroids_portable.h"
#include "device/cpu/kernels/trellis_nibbles.h"

struct NeonFloats {
  using Lanes = float32x4_t;
  static constexpr int kLanes = 4;
  static KVANT_INLINE Lanes zero() { return vdupq_n_f32(0); }
  static KVANT_INLINE Lanes fill(float x) { return vdupq_n_f32(x); }
  static KVANT_INLINE Lanes load(const float* from) { return vld1q_f32(from); }
  static KVANT_INLINE void store(float* to, Lanes x) { vst1q_f32(to, x); }
  static KVANT_INLINE Lanes from_bf16(const std::uint16_t* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
  }
  static KVANT_INLINE Lanes from_f16(const std::uint16_t* from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
  }
  // Puts magnitude and sign, which the sign extension has copied, into the places of an F32. A product
  // corrects the exponent's bias, and also normalizes denormals.
  static KVANT_INLINE Lanes from_e4m3(const std::uint8_t* from) {
    std::uint32_t four;
    __builtin_memcpy(&four, from, sizeof four);
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(four));
    const uint32x4_t x = vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
    return vmulq_n_f32(vreinterpretq_f32_u32(vandq_u32(vshlq_n_u32(x, 20), vdupq_n_u32(0x87f00000U))),
                       0x1p120F);
  }
  static KVANT_INLINE Lanes add(Lanes a, Lanes b) { return vaddq_f32(a, b); }
  static KVANT_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return vfmaq_f32(c, a, b); }
  static KVANT_INLINE Lanes multiply(Lanes a, Lanes b) { return vmulq_f32(a, b); }
  static KVANT_INLINE Lanes maximum(Lanes a, Lanes b) { return vmaxq_f32(a, b); }
  static KVANT_INLINE float largest(Lanes x) { return vmaxvq_f32(x); }
  static KVANT_INLINE Lanes power_of_two(Lanes n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
  }
  static KVANT_INLINE Lanes exponential(Lanes x) {
    x = vmaxq_f32(x, fill(kLowestExponent));
    const Lanes n = vrndnq_f32(vmulq_n_f32(x, kLog2e));
    const Lanes f = vfmsq_f32(vfmsq_f32(x, n, fill(kLn2High)), n, fill(kLn2Low));
    return vmulq_f32(exp_polynomial<NeonFloats>(f), power_of_two(n));
  }
  // Returns 2^x by power_polynomial(), or 2^-126 if x < -126.
  static KVANT_INLINE Lanes power(Lanes x) {
    x = vmaxq_f32(x, fill(-126));
    const Lanes n = vrndnq_f32(x);
    return vmulq_f32(power_polynomial<NeonFloats>(vsubq_f32(x, n)), power_of_two(n));
  }
  // Stores numbers of 0 to 255 as rounded bytes.
  static KVANT_INLINE void store_bytes(std::uint8_t* to, Lanes x) {
    const uint16x4_t words = vmovn_u32(vcvtnq_u32_f32(x));
    const std::uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
    __builtin_memcpy(to, &four, sizeof four);
  }
  static KVANT_INLINE Lanes store_rounded(std::int32_t* to, Lanes x) {
    const int32x4_t numbers = vcvtnq_s32_f32(x);
    vst1q_s32(to, numbers);
    return vcvtq_f32_s32(numbers);
  }
  static KVANT_INLINE float sum(Lanes x) { return vaddvq_f32(x); }
  static KVANT_INLINE void store_sums(Lanes a, Lanes b, Lanes c, Lanes d, float* to) {
    store(to, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
  }
};

struct Neon : WordPacking {
  using Centroids = PortableCentroids;
  using Floats = NeonFloats;
  using HalfFloats = NeonFloats;
  static constexpr int kBytes = 16;
  static constexpr bool kLargeTables = true, kSignedCodes = false;
  static constexpr bool kSmallQueries = false, kSmallWeights = false, kUnsignedWeights = false;
  static constexpr int kRegistersPerSum = 2, kSumRegisters = 16, kMaxPairedHeads = 3;
  static constexpr int kTileRows = 0, kByteRows = 0;
  using Bytes = uint8x16_t;
  struct Codes {
    // Hold the even and the odd bytes as 16-bit numbers.
    int16x8_t even, odd;
  };
  // `low` holds products of the first 8 bytes, and `high` of the others. Two neighbours belong together for
  // scores, and all four for mixes.
  struct Ints {
    int32x4_t low, high;
  };
  // Hold the numbers of 8 bytes twice, because vcombine_s16() would be an instruction for each product.
  struct Weights {
    int16x8_t even, odd;
  };

  static KVANT_INLINE Bytes load(const void* from) {
    return vld1q_u8(static_cast<const std::uint8_t*>(from));
  }
  static KVANT_INLINE void store(void* to, Bytes x) { vst1q_u8(static_cast<std::uint8_t*>(to), x); }
  struct Groups {};
  static KVANT_INLINE Groups first_groups(int) { return {}; }
  static KVANT_INLINE Bytes load_groups(const void* from, Groups) { return load(from); }
  // Shifts move bits within bytes, because no caller uses the bits that cross bytes.
  template <int N>
  static KVANT_INLINE Bytes shift_right(Bytes x) {
    if constexpr (N == 0) {
      return x;
    } else {
      return vshrq_n_u8(x, N);
    }
  }
  template <int N>
  static KVANT_INLINE Bytes shift_left(Bytes x) {
    return vshlq_n_u8(x, N);
  }
  static KVANT_INLINE Bytes fill(int byte) { return vdupq_n_u8(static_cast<std::uint8_t>(byte)); }
  static KVANT_INLINE Bytes both(Bytes a, Bytes b) { return vandq_u8(a, b); }
  static KVANT_INLINE Bytes select(Bytes mask, Bytes a, Bytes b) { return vbslq_u8(mask, a, b); }
  static KVANT_INLINE Bytes from_lane_before(Bytes x, Bytes y) {
    const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_u8(x), 8);
    return vreinterpretq_u8_u32(vsriq_n_u32(shifted, vreinterpretq_u32_u8(y), 24));
  }
  static KVANT_INLINE Bytes from_octet_before(Bytes x, const void* first) {
    return vcombine_u8(vld1_u8(static_cast<const std::uint8_t*>(first)), vget_low_u8(x));
  }

  template <bool Large>
  struct LevelTable {
    explicit LevelTable(const std::uint8_t* from) : tables{load(from), load(from + (Large ? 16 : 0))} {}
    KVANT_INLINE Bytes look_up(Bytes x) const {
      if constexpr (Large) {
        return vqtbl2q_u8({{tables[0], tables[1]}}, x);
      } else {
        return vqtbl1q_u8(tables[0], x);
      }
    }
    Bytes tables[2];
  };

  // An index outside a table of 64 bytes leaves the result as it is.
  struct ByteTable {
    explicit ByteTable(const std::uint8_t* from) : from(from) {}
    KVANT_INLINE Bytes look_up(Bytes x) const {
      Bytes found = vqtbl4q_u8(vld1q_u8_x4(from), x);
      found = vqtbx4q_u8(found, vld1q_u8_x4(from + 64), vsubq_u8(x, fill(64)));
      found = vqtbx4q_u8(found, vld1q_u8_x4(from + 128), vsubq_u8(x, fill(128)));
      return vqtbx4q_u8(found, vld1q_u8_x4(from + 192), vsubq_u8(x, fill(192)));
    }
    const std::uint8_t* from;
  };

  template <int B, int R>
  static KVANT_INLINE Bytes state_levels(const Bytes (&planes)[B], const Bytes& before) {
    constexpr kvant::TrellisCode kCode = kvant::kTrellisCodes[B - 1];
    static_assert(kCode.mix >= 4 && kCode.mix + kCode.fold >= 8);
    alignas(16) static constexpr NibbleTable kLow = nibble_levels(kCode, 0, kvant::kTableBias);
    alignas(16) static constexpr NibbleTable kHigh = nibble_levels(kCode, 4, 0);
    const Bytes state = states<Neon, B, R>(planes, before);
    const Bytes mixed = veorq_u8(state, shift_left<kCode.mix>(state));
    return vaddq_u8(vqtbl1q_u8(load(kLow.levels), both(state, fill(0x0f))),
                    vqtbl1q_u8(load(kHigh.levels), shift_right<4>(mixed)));
  }

  static KVANT_INLINE Codes split(Bytes x) {
    return {vreinterpretq_s16_u8(both(x, vreinterpretq_u8_u16(vdupq_n_u16(0x00ff)))),
            vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_u8(x), 8))};
  }

  using MixInts = Ints;
  static KVANT_INLINE MixInts no_mix_sums() { return sums_from(0); }
  static KVANT_INLINE Ints sums_from(std::int32_t number) {
    const int32x4_t first = vsetq_lane_s32(number, vdupq_n_s32(0), 0);
    const int32x4_t both_tokens = vsetq_lane_s32(number, first, 2);
    return {both_tokens, both_tokens};
  }
  static KVANT_INLINE void multiply_add(Ints& sums, int16x8_t codes, int16x8_t numbers) {
    sums.low = vmlal_s16(sums.low, vget_low_s16(codes), vget_low_s16(numbers));
    sums.high = vmlal_high_s16(sums.high, codes, numbers);
  }
  static KVANT_INLINE void multiply_query(Ints& sums, const Codes& codes, const std::uint32_t* quad) {
    const uint32x2_t numbers = vld1_u32(quad);
    multiply_add(sums, codes.even, vreinterpretq_s16_u32(vdupq_lane_u32(numbers, 0)));
    multiply_add(sums, codes.odd, vreinterpretq_s16_u32(vdupq_lane_u32(numbers, 1)));
  }
  static KVANT_INLINE Weights load_weights(const std::uint64_t* octet) {
    return {vreinterpretq_s16_u64(vld1q_dup_u64(octet)), vreinterpretq_s16_u64(vld1q_dup_u64(octet + 1))};
  }
  static KVANT_INLINE void multiply_weights(Ints& sums, const Codes& codes, const Weights& weights) {
    multiply_add(sums, codes.even, weights.even);
    multiply_add(sums, codes.odd, weights.odd);
  }
  static KVANT_INLINE int32x4_t total(const Ints& sums) { return vpaddq_s32(sums.low, sums.high); }
  static KVANT_INLINE void store_lanes(const Ints& sums, std::int32_t* out) { vst1q_s32(out, total(sums)); }
  // Adds the numbers of two groups, in two neighbouring lanes each, to `out`.
  static KVANT_INLINE void add_pairs(int32x4_t sums, std::int32_t bias, float factor, const float* scale,
                                     float* out) {
    const int32x2_t numbers = vget_low_s32(vpaddq_s32(sums, sums));
    const float32x2_t values = vcvt_f32_s32(vsub_s32(numbers, vdup_n_s32(bias)));
    float32x2_t by = vdup_n_f32(factor);
    if (scale != nullptr) by = vmul_f32(by, vld1_f32(scale));
    vst1_f32(out, vfma_f32(vld1_f32(out), values, by));
  }
  static KVANT_INLINE void add_octets(const Ints& sums, std::int32_t bias, float factor, const float* scale,
                                      float* out, Groups) {
    add_pairs(total(sums), bias, factor, scale, out);
  }
};
