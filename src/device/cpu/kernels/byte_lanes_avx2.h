// Wraps registers of AVX2 with products of 16-bit numbers. byte_kernels_avx2.cc and byte_kernels_avxvnni.cc
// include this header inside their namespaces.
#include "device/cpu/kernels/centroids_avx2.h"
#include "device/cpu/kernels/float_lanes_avx2.h"
#include "device/cpu/kernels/trellis_nibbles.h"

struct Avx2 : WordPacking {
  using Centroids = Avx2Centroids;
  using Floats = Floats8;
  using HalfFloats = Floats8;
  static constexpr int kBytes = 32;
  static constexpr bool kLargeTables = false, kSignedCodes = false;
  static constexpr bool kSmallQueries = false, kSmallWeights = false, kUnsignedWeights = false;
  static constexpr int kRegistersPerSum = 1, kSumRegisters = 8, kMaxPairedHeads = 3;
  static constexpr int kTileRows = 3, kTileRegisters = 2;
  static constexpr int kByteRows = 0;
  using Bytes = __m256i;
  struct Codes {
    __m256i even, odd;
  };
  using Ints = __m256i;
  // pack_weights() packs the two registers.
  struct Weights {
    __m256i first, second;
  };

  static KVANT_INLINE Bytes load(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static KVANT_INLINE void store(void* to, Bytes x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
  struct Groups {};
  static KVANT_INLINE Groups first_groups(int) { return {}; }
  static KVANT_INLINE Bytes load_groups(const void* from, Groups) { return load(from); }
  template <int N>
  static KVANT_INLINE Bytes shift_right(Bytes x) {
    return _mm256_srli_epi32(x, N);
  }
  template <int N>
  static KVANT_INLINE Bytes shift_left(Bytes x) {
    return _mm256_slli_epi32(x, N);
  }
  static KVANT_INLINE Bytes fill(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  static KVANT_INLINE Bytes both(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
  static KVANT_INLINE Bytes select(Bytes mask, Bytes a, Bytes b) {
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
  }
  static KVANT_INLINE Bytes from_lane_before(Bytes x, Bytes y) {
    return _mm256_or_si256(_mm256_slli_epi32(x, 8), _mm256_srli_epi32(y, 24));
  }
  static KVANT_INLINE Bytes from_octet_before(Bytes x, const void* first) {
    long long octet;
    __builtin_memcpy(&octet, first, sizeof octet);
    return _mm256_blend_epi32(_mm256_permute4x64_epi64(x, 0x90), _mm256_set1_epi64x(octet), 0x03);
  }

  // Holds entries 0 .. 15 and 16 .. 31; bit 4 of an index selects between the two.
  template <bool Large>
  struct LevelTable {
    explicit LevelTable(const std::uint8_t* from)
        : low(Centroids::sixteen(from)), high(Centroids::sixteen(from + (Large ? 16 : 0))) {}
    KVANT_INLINE Bytes look_up(Bytes x) const {
      if (!Large) return _mm256_shuffle_epi8(low, x);
      const __m256i index = both(x, fill(0x0f));
      return _mm256_blendv_epi8(_mm256_shuffle_epi8(low, index), _mm256_shuffle_epi8(high, index),
                                _mm256_slli_epi16(x, 3));
    }
    __m256i low, high;
  };

  // Returns the 4 bits of each group that begin at bit First of the group's bytes.
  template <int First, int B>
  static KVANT_INLINE Bytes nibbles(const Bytes (&planes)[B], const Bytes& before) {
    constexpr int kByte = (First + 8) / 8 - 1, kShift = First - kByte * 8;
    const Bytes& plane = kByte < 0 ? before : planes[kByte < 0 ? 0 : kByte];
    if constexpr (kShift == 0) {
      return both(plane, fill(0x0f));
    } else if constexpr (kShift <= 4) {
      return both(_mm256_srli_epi16(plane, kShift), fill(0x0f));
    } else {
      constexpr int kLow = 0xff >> kShift;
      return _mm256_or_si256(both(_mm256_srli_epi16(plane, kShift), fill(kLow)),
                             both(_mm256_slli_epi16(planes[kByte + 1], 8 - kShift), fill(0x0f & ~kLow)));
    }
  }
  // The mix leaves low nibbles unchanged. Table look-ups use the lowest 4 bits of an index, and no index here
  // has its highest bit set.
  template <int B, int R>
  static KVANT_INLINE Bytes state_levels(const Bytes (&planes)[B], const Bytes& before) {
    constexpr kvant::TrellisCode kCode = kvant::kTrellisCodes[B - 1];
    static_assert(kCode.mix >= 4 && kCode.mix + kCode.fold >= 8);
    alignas(16) static constexpr NibbleTable kLow = nibble_levels(kCode, 0, kvant::kTableBias);
    alignas(16) static constexpr NibbleTable kHigh = nibble_levels(kCode, 4, 0);
    constexpr int kFirst = B * (R + 1) - kvant::kTrellisBits;
    const Bytes low = nibbles<kFirst>(planes, before), high = nibbles<kFirst + 4>(planes, before);
    const Bytes mixed_high = _mm256_xor_si256(high, _mm256_slli_epi16(low, kCode.mix - 4));
    return _mm256_add_epi8(_mm256_shuffle_epi8(Centroids::sixteen(kLow.levels), low),
                           _mm256_shuffle_epi8(Centroids::sixteen(kHigh.levels), mixed_high));
  }

  // Stores lane r of `first` and lane r of `second` in quads[r].
  static KVANT_INLINE void store_pairs(__m256i first, __m256i second, std::uint32_t (*quads)[2]) {
    const __m256i low = _mm256_unpacklo_epi32(first, second), high = _mm256_unpackhi_epi32(first, second);
    auto* to = reinterpret_cast<__m256i*>(quads);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(low, high, 0x31));
  }
  static KVANT_INLINE void pack_query(const std::int32_t* numbers, int channels, std::uint32_t (*quads)[2]) {
    if (channels != 8) return WordPacking::pack_query(numbers, channels, quads);
    const auto two_groups = [&](int low, int high) __attribute__((always_inline)) {
      return _mm256_blend_epi16(load(numbers + 8 * low), _mm256_slli_epi32(load(numbers + 8 * high), 16),
                                0xaa);
    };
    store_pairs(two_groups(0, 2), two_groups(1, 3), quads);
  }
  // Packs numbers into four quads: numbers 0 and 2 of each, then 1 and 3.
  static KVANT_INLINE void pack_quads(const std::int32_t* numbers, std::uint32_t (*quads)[2]) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(load(numbers), load(numbers + 8)), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(quads), _mm256_shuffle_epi8(words, order));
  }
  // Packs numbers into two octets: the even numbers of each, then the odd numbers.
  static KVANT_INLINE void pack_weights(const std::int32_t* numbers, std::uint64_t (*octets)[2]) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(load(numbers), load(numbers + 8)), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(octets), _mm256_shuffle_epi8(words, order));
  }

  static KVANT_INLINE Codes split(Bytes x) {
    return {both(x, _mm256_set1_epi16(0x00ff)), _mm256_srli_epi16(x, 8)};
  }

  using MixInts = Ints;
  static KVANT_INLINE MixInts no_mix_sums() { return sums_from(0); }
  static KVANT_INLINE Ints sums_from(std::int32_t number) { return _mm256_set1_epi32(number); }
  static KVANT_INLINE void multiply_add(Ints& sums, const Codes& codes, __m256i even, __m256i odd) {
    sums = _mm256_add_epi32(
        sums, _mm256_add_epi32(_mm256_madd_epi16(codes.even, even), _mm256_madd_epi16(codes.odd, odd)));
  }
  static KVANT_INLINE void multiply_query(Ints& sums, const Codes& codes, const std::uint32_t* quad) {
    multiply_add(sums, codes, _mm256_set1_epi32(static_cast<int>(quad[0])),
                 _mm256_set1_epi32(static_cast<int>(quad[1])));
  }
  static KVANT_INLINE Weights load_weights(const std::uint64_t* octet) {
    return {_mm256_set1_epi64x(static_cast<long long>(octet[0])),
            _mm256_set1_epi64x(static_cast<long long>(octet[1]))};
  }
  static KVANT_INLINE void multiply_weights(Ints& sums, const Codes& codes, const Weights& weights) {
    multiply_add(sums, codes, weights.first, weights.second);
  }
  static KVANT_INLINE void store_lanes(const Ints& sums, std::int32_t* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), sums);
  }
  static KVANT_INLINE __m256 to_floats(const Ints& sums) { return _mm256_cvtepi32_ps(sums); }
  static KVANT_INLINE void add_octets(const Ints& sums, std::int32_t bias, float factor, const float* scale,
                                      float* out, Groups) {
    const __m256i pairs = _mm256_add_epi32(sums, _mm256_srli_epi64(sums, 32));
    const __m256i packed = _mm256_permutevar8x32_epi32(pairs, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
    const __m128 values =
        _mm_cvtepi32_ps(_mm_sub_epi32(_mm256_castsi256_si128(packed), _mm_set1_epi32(bias)));
    __m128 by = _mm_set1_ps(factor);
    if (scale != nullptr) by = _mm_mul_ps(by, _mm_loadu_ps(scale));
    _mm_storeu_ps(out, _mm_fmadd_ps(values, by, _mm_loadu_ps(out)));
  }
};
