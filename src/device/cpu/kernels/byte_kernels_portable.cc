// Implements the kernels with the compilers' own vectors of 16 bytes, for processors without a file of their
// own.
#include "device/cpu/kernels/byte_kernels.h"

#if !defined(KVANT_NO_PORTABLE_KERNELS)
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

#include "device/cpu/kernels/byte_kernels_body.h"
#include "device/cpu/kernels/centroids_portable.h"

typedef std::uint8_t Bytes16 __attribute__((vector_size(16)));
typedef std::uint32_t Words32 __attribute__((vector_size(16)));
typedef std::uint64_t Octets64 __attribute__((vector_size(16)));
typedef std::int16_t Words16 __attribute__((vector_size(16)));
typedef std::int32_t Ints32 __attribute__((vector_size(16)));

typedef float Floats32 __attribute__((vector_size(16)));

struct Floats4 {
  using Lanes = Floats32;
  static constexpr int kLanes = 4;
  static KVANT_INLINE Lanes zero() { return Lanes{}; }
  static KVANT_INLINE Lanes fill(float x) { return Lanes{} + x; }
  static KVANT_INLINE Lanes load(const float* from) {
    Lanes x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
  }
  static KVANT_INLINE void store(float* to, Lanes x) { __builtin_memcpy(to, &x, sizeof x); }
  static KVANT_INLINE Lanes from_bf16(const std::uint16_t* from) {
    const Words32 bits = {from[0], from[1], from[2], from[3]};
    return reinterpret_cast<Lanes>(bits << 16);
  }
  // The values are finite, because the cache stores no others. A product corrects the exponent's bias, and
  // also normalizes denormals.
  static KVANT_INLINE Lanes from_f16(const std::uint16_t* from) {
    const Words32 bits = {from[0], from[1], from[2], from[3]};
    return reinterpret_cast<Lanes>((bits & 0x8000) << 16 | (bits & 0x7fff) << 13) * 0x1p112F;
  }
  static KVANT_INLINE Lanes from_e4m3(const std::uint8_t* from) {
    const Words32 bits = {from[0], from[1], from[2], from[3]};
    return reinterpret_cast<Lanes>((bits & 0x80) << 24 | (bits & 0x7f) << 20) * 0x1p120F;
  }
  static KVANT_INLINE Lanes add(Lanes a, Lanes b) { return a + b; }
  static KVANT_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return a * b + c; }
  static KVANT_INLINE Lanes multiply(Lanes a, Lanes b) { return a * b; }
  static KVANT_INLINE Lanes maximum(Lanes a, Lanes b) { return a > b ? a : b; }
  static KVANT_INLINE float largest(Lanes x) {
    const float low = x[0] > x[1] ? x[0] : x[1], high = x[2] > x[3] ? x[2] : x[3];
    return low > high ? low : high;
  }
  static KVANT_INLINE float sum(Lanes x) { return (x[0] + x[1]) + (x[2] + x[3]); }
  static KVANT_INLINE void store_sums(Lanes a, Lanes b, Lanes c, Lanes d, float* to) {
    to[0] = sum(a);
    to[1] = sum(b);
    to[2] = sum(c);
    to[3] = sum(d);
  }
};

struct Portable : WordPacking {
  using Centroids = PortableCentroids;
  using Floats = Floats4;
  using HalfFloats = Floats4;
  static constexpr int kBytes = 16;
  static constexpr bool kLargeTables = false, kSignedCodes = false;
  static constexpr bool kSmallQueries = false, kSmallWeights = false, kUnsignedWeights = false;
  static constexpr int kMaxPairedHeads = 4;
  static constexpr int kRegistersPerSum = 1, kSumRegisters = 8;
  static constexpr int kTileRows = 0, kByteRows = 0;
  using Bytes = Bytes16;
  struct Codes {
    // Hold the even and the odd bytes as 16-bit numbers.
    Words16 even, odd;
  };
  using Ints = Ints32;

  static KVANT_INLINE Bytes load(const void* from) {
    Bytes x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
  }
  struct Groups {};
  static KVANT_INLINE Groups first_groups(int) { return {}; }
  static KVANT_INLINE Bytes load_groups(const void* from, Groups) { return load(from); }
  template <int N>
  static KVANT_INLINE Bytes shift_right(Bytes x) {
    return reinterpret_cast<Bytes>(reinterpret_cast<Words32>(x) >> N);
  }
  template <int N>
  static KVANT_INLINE Bytes shift_left(Bytes x) {
    return reinterpret_cast<Bytes>(reinterpret_cast<Words32>(x) << N);
  }
  static KVANT_INLINE Bytes fill(int byte) { return Bytes{} + static_cast<std::uint8_t>(byte); }
  static KVANT_INLINE Bytes both(Bytes a, Bytes b) { return a & b; }
  static KVANT_INLINE Bytes select(Bytes mask, Bytes a, Bytes b) { return (a & mask) | (b & ~mask); }
  // Each 32-bit lane is shifted as one integer. Pages exist only on little-endian machines, so the byte of a
  // lane that comes last in memory is its highest byte.
  static KVANT_INLINE Bytes from_lane_before(Bytes x, Bytes y) {
    return reinterpret_cast<Bytes>((reinterpret_cast<Words32>(x) << 8) |
                                   (reinterpret_cast<Words32>(y) >> 24));
  }
  static KVANT_INLINE Bytes from_octet_before(Bytes x, const void* first) {
    std::uint64_t lanes[2];
    __builtin_memcpy(&lanes[1], &x, 8);
    __builtin_memcpy(&lanes[0], first, 8);
    return load(lanes);
  }

  template <bool Large>
  struct LevelTable {
    explicit LevelTable(const std::uint8_t* from) : table(from) {}
    KVANT_INLINE Bytes look_up(Bytes x) const {
      Bytes found;
      for (int i = 0; i < kBytes; ++i) found[i] = table[x[i]];
      return found;
    }
    const std::uint8_t* table;
  };

  // The last bits of `mixed` and `folded` are equal. The last bit of a ^ b is therefore 0 in each byte, so no
  // bit crosses into the next byte.
  template <int B, int R>
  static KVANT_INLINE Bytes state_levels(const Bytes (&planes)[B], const Bytes& before) {
    constexpr kvant::TrellisCode kCode = kvant::kTrellisCodes[B - 1];
    const Bytes state = states<Portable, B, R>(planes, before);
    const Bytes mixed = state ^ both(shift_left<kCode.mix>(state), fill(0xff << kCode.mix & 0xff));
    const Bytes folded = select(fill(kCode.fold_mask), shift_left<kCode.fold>(state), mixed);
    const Bytes a = mixed ^ fill(kvant::kTableBias), b = folded ^ fill(kvant::kTableBias);
    return (a & b) + shift_right<1>(a ^ b);
  }

  static KVANT_INLINE Codes split(Bytes x) {
    return {reinterpret_cast<Words16>(x) & 0xff,
            reinterpret_cast<Words16>(reinterpret_cast<Words32>(x) >> 8) & 0xff};
  }

  using MixInts = Ints;
  static KVANT_INLINE MixInts no_mix_sums() { return sums_from(0); }
  static KVANT_INLINE Ints sums_from(std::int32_t number) { return Ints{} + number; }
  // Returns for each pair of neighbours the sum of their products. Every x86-64 has one instruction for it,
  // which GCC does not use for a loop over elements.
  static KVANT_INLINE Ints multiply_pairs(Words16 a, Words16 b) {
#if defined(__SSE2__)
    return reinterpret_cast<Ints>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
    Ints sums;
    for (int i = 0; i < 4; ++i) sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sums;
#endif
  }
  static KVANT_INLINE Words16 fill_pairs(std::uint32_t pair) {
    return reinterpret_cast<Words16>(Words32{} + pair);
  }
  static KVANT_INLINE void multiply_query(Ints& sums, const Codes& codes, const std::uint32_t* quad) {
    sums += multiply_pairs(codes.even, fill_pairs(quad[0])) + multiply_pairs(codes.odd, fill_pairs(quad[1]));
  }
  struct Weights {
    Words16 even, odd;
  };
  static KVANT_INLINE Words16 fill_quads(std::uint64_t quad) {
    return reinterpret_cast<Words16>(Octets64{} + quad);
  }
  static KVANT_INLINE Weights load_weights(const std::uint64_t* octet) {
    return {fill_quads(octet[0]), fill_quads(octet[1])};
  }
  static KVANT_INLINE void multiply_weights(Ints& sums, const Codes& codes, const Weights& weights) {
    sums += multiply_pairs(codes.even, weights.even) + multiply_pairs(codes.odd, weights.odd);
  }
  static KVANT_INLINE void store_lanes(const Ints& sums, std::int32_t* out) {
    __builtin_memcpy(out, &sums, sizeof sums);
  }
  static KVANT_INLINE void add_octets(const Ints& sums, std::int32_t bias, float factor, const float* scale,
                                      float* out, Groups) {
    for (int i = 0; i < 2; ++i) {
      const auto sum = static_cast<float>(sums[2 * i] + sums[2 * i + 1] - bias);
      out[i] += sum * (scale == nullptr ? factor : factor * scale[i]);
    }
  }
};

}  // namespace

namespace kvant::cpu {

const ByteKernels* portable_kernels() {
  static constexpr ByteKernels kernels = kernels_of<Portable>("portable");
  return &kernels;
}

}  // namespace kvant::cpu

#else

namespace kvant::cpu {

const ByteKernels* portable_kernels() {
  return nullptr;
}

}  // namespace kvant::cpu

#endif
