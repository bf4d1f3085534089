// Wraps registers of NEON with products of four bytes. A number of 16 bits is split into two bytes, which are
// multiplied separately. `Products` multiplies codes with bytes of numbers: dot() for each four bytes of two
// registers, and dot_lane<i>() for each four codes and word i of `numbers`. The files of instruction sets
// with such products include this header inside their namespaces.
#include "device/cpu/kernels/byte_lanes_neon.h"

template <class Products>
struct ByteProducts : Neon {
  static constexpr bool kSmallQueries = true, kSmallWeights = true, kSignedCodes = Products::kSignedCodes;
  static constexpr int kSumRegisters = 20, kMaxPairedHeads = 4;
  static constexpr int kTileRows = 4, kTileRegisters = 2;
  static constexpr int kByteRows = Products::kSignedCodes ? 0 : 6, kByteRegisters = 2;
  using Codes = uint8x16_t;
  struct Ints {
    int32x4_t high, low;
  };
  struct Weights {
    int8x16_t high, low;
  };

  static KVANT_INLINE Codes split(Bytes x) { return x; }
  static KVANT_INLINE Bytes lower(Bytes x) { return veorq_u8(x, fill(0x80)); }

  using MixInts = Ints;
  static KVANT_INLINE MixInts no_mix_sums() { return sums_from(0); }
  static KVANT_INLINE Ints sums_from(std::int32_t number) { return {vdupq_n_s32(0), vdupq_n_s32(number)}; }
  static KVANT_INLINE void multiply_query(Ints& sums, Codes codes, const std::uint32_t* quad) {
    const int8x8_t numbers = vreinterpret_s8_u32(vld1_u32(quad));
    sums.high = Products::template dot_lane<0>(sums.high, codes, numbers);
    sums.low = Products::template dot_lane<1>(sums.low, codes, numbers);
  }
  static KVANT_INLINE void multiply_small_query(Ints& sums, Codes codes, const std::uint32_t* quad) {
    sums.low = Products::template dot_lane<0>(sums.low, codes, vreinterpret_s8_u32(vld1_dup_u32(quad + 1)));
  }
  static KVANT_INLINE Weights load_weights(const std::uint64_t* octet) {
    const uint64x2_t high_and_low = vld1q_u64(octet);
    return {vreinterpretq_s8_u64(vdupq_laneq_u64(high_and_low, 0)),
            vreinterpretq_s8_u64(vdupq_laneq_u64(high_and_low, 1))};
  }
  static KVANT_INLINE void multiply_weights(Ints& sums, Codes codes, const Weights& weights) {
    sums.high = Products::dot(sums.high, codes, weights.high);
    sums.low = Products::dot(sums.low, codes, weights.low);
  }
  static KVANT_INLINE void multiply_small_weights(Ints& sums, Codes codes, const Weights& weights) {
    sums.low = Products::dot(sums.low, codes, weights.low);
  }
  static KVANT_INLINE int32x4_t total(const Ints& sums) {
    return vaddq_s32(vshlq_n_s32(sums.high, 8), sums.low);
  }
  static KVANT_INLINE void store_lanes(const Ints& sums, std::int32_t* out) { vst1q_s32(out, total(sums)); }
  static KVANT_INLINE float32x4_t to_floats(const Ints& sums) { return vcvtq_f32_s32(total(sums)); }
  static KVANT_INLINE void add_octets(const Ints& sums, std::int32_t bias, float factor, const float* scale,
                                      float* out, Groups) {
    add_pairs(total(sums), bias, factor, scale, out);
  }

  using ByteSums = Bytes;
  static KVANT_INLINE ByteSums no_byte_sums() { return fill(0); }
  static KVANT_INLINE void multiply_bytes(ByteSums& sums, std::int32_t of_row, Bytes lanes) {
    sums = vreinterpretq_u8_s32(Products::dot(
        vreinterpretq_s32_u8(sums), vreinterpretq_u8_s32(vdupq_n_s32(of_row)), vreinterpretq_s8_u8(lanes)));
  }
  static KVANT_INLINE float32x4_t byte_sums_to_floats(ByteSums sums) {
    return vcvtq_f32_s32(vreinterpretq_s32_u8(sums));
  }

  // Splits 8 numbers into high bytes and the remaining low bytes, both signed.
  struct SplitNumbers {
    KVANT_INLINE explicit SplitNumbers(const std::int32_t* numbers)
        : SplitNumbers(vcombine_s16(vmovn_s32(vld1q_s32(numbers)), vmovn_s32(vld1q_s32(numbers + 4)))) {}
    KVANT_INLINE explicit SplitNumbers(int16x8_t words)
        : high(vreinterpret_u8_s8(vrshrn_n_s16(words, 8))), low(vreinterpret_u8_s8(vmovn_s16(words))) {}
    uint8x8_t high, low;
  };
  // Puts byte i of a, b, c and d next to each other, for each i.
  static KVANT_INLINE uint32x4x2_t interleaved(uint8x8_t a, uint8x8_t b, uint8x8_t c, uint8x8_t d) {
    const uint8x8x2_t ab = vzip_u8(a, b), cd = vzip_u8(c, d);
    const uint16x8_t first = vreinterpretq_u16_u8(vcombine_u8(ab.val[0], ab.val[1]));
    const uint16x8_t second = vreinterpretq_u16_u8(vcombine_u8(cd.val[0], cd.val[1]));
    return {
        {vreinterpretq_u32_u16(vzip1q_u16(first, second)), vreinterpretq_u32_u16(vzip2q_u16(first, second))}};
  }
  static KVANT_INLINE void pack_query(const std::int32_t* numbers, int channels, std::uint32_t (*quads)[2]) {
    if (channels != 8) return BytePacking::pack_query(numbers, channels, quads);
    const SplitNumbers a(numbers), b(numbers + 8), c(numbers + 16), d(numbers + 24);
    const uint32x4x2_t high = interleaved(a.high, b.high, c.high, d.high);
    const uint32x4x2_t low = interleaved(a.low, b.low, c.low, d.low);
    vst2q_u32(quads[0], {{high.val[0], low.val[0]}});
    vst2q_u32(quads[4], {{high.val[1], low.val[1]}});
  }
  // Packs 16 numbers into four quads. Each quad has the high bytes of its four numbers, then the low bytes.
  static KVANT_INLINE void pack_quads(const std::int32_t* numbers, std::uint32_t (*quads)[2]) {
    for (int half = 0; half < 2; ++half) {
      const SplitNumbers split(numbers + 8 * half);
      vst2_u32(quads[2 * half], {{vreinterpret_u32_u8(split.high), vreinterpret_u32_u8(split.low)}});
    }
  }
  // Packs 16 numbers into two octets. Each octet has the high bytes of its eight numbers, then the low bytes.
  static KVANT_INLINE void pack_weights(const std::int32_t* numbers, std::uint64_t (*octets)[2]) {
    for (int octet = 0; octet < 2; ++octet) {
      const SplitNumbers split(numbers + 8 * octet);
      vst1q_u64(octets[octet], vreinterpretq_u64_u8(vcombine_u8(split.high, split.low)));
    }
  }
};
