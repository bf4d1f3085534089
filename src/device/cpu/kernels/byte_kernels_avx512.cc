// Implements the kernels with AVX-512 including VNNI, VBMI, VBMI2 and GFNI (Ice Lake, Zen 4 and later).
// Processors with these extensions multiply bytes and keep tables of 256 entries in registers. A number of 16
// bits is split into two bytes, which are multiplied separately.
#include "device/cpu/kernels/byte_kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__AVX512VBMI2__) && defined(__GFNI__)
#include <immintrin.h>

namespace {

#include "device/cpu/kernels/byte_kernels_body.h"
#include "device/cpu/kernels/centroids_avx2.h"
#include "device/cpu/kernels/float_lanes_avx2.h"
#include "device/cpu/kernels/trellis_maps.h"

struct Floats16 {
  using Lanes = __m512;
  static constexpr int kLanes = 16;
  static KVANT_INLINE Lanes zero() { return _mm512_setzero_ps(); }
  static KVANT_INLINE Lanes fill(float x) { return _mm512_set1_ps(x); }
  static KVANT_INLINE Lanes load(const float* from) { return _mm512_loadu_ps(from); }
  static KVANT_INLINE void store(float* to, Lanes x) { _mm512_storeu_ps(to, x); }
  static KVANT_INLINE Lanes from_bf16(const std::uint16_t* from) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static KVANT_INLINE Lanes from_f16(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static KVANT_INLINE Lanes from_e4m3(const std::uint8_t* from) {
    const __m512i x = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x87f00000U));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(_mm512_slli_epi32(x, 20), mask)),
                         fill(0x1p120F));
  }
  static KVANT_INLINE Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
  static KVANT_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
  static KVANT_INLINE Lanes multiply(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
  static KVANT_INLINE Lanes maximum(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
  static KVANT_INLINE float largest(Lanes x) {
    return Floats8::largest(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
  }
  static KVANT_INLINE Lanes exponential(Lanes x) {
    x = _mm512_max_ps(x, fill(kLowestExponent));
    const Lanes n =
        _mm512_roundscale_ps(_mm512_mul_ps(x, fill(kLog2e)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Lanes f = _mm512_fnmadd_ps(n, fill(kLn2Low), _mm512_fnmadd_ps(n, fill(kLn2High), x));
    return _mm512_scalef_ps(exp_polynomial<Floats16>(f), n);
  }
  // Returns 2^x by power_polynomial(), or 2^-126 if x < -126.
  static KVANT_INLINE Lanes power(Lanes x) {
    x = _mm512_max_ps(x, fill(-126));
    const Lanes n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(power_polynomial<Floats16>(_mm512_sub_ps(x, n)), n);
  }
  // Stores numbers of 0 to 255 as rounded bytes.
  static KVANT_INLINE void store_bytes(std::uint8_t* to, Lanes x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
  }
  static KVANT_INLINE Lanes store_rounded(std::int32_t* to, Lanes x) {
    const __m512i numbers = _mm512_cvtps_epi32(x);
    _mm512_storeu_si512(to, numbers);
    return _mm512_cvtepi32_ps(numbers);
  }
  static KVANT_INLINE float sum(Lanes x) { return Floats8::sum(halves(x)); }
  static KVANT_INLINE void store_sums(Lanes a, Lanes b, Lanes c, Lanes d, float* to) {
    const Lanes ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const Lanes cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m256 all = halves(add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee)));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
  }
  static KVANT_INLINE __m256 halves(Lanes x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  }
};

struct Avx512 : BytePacking {
  using Centroids = Avx2Centroids;
  using Floats = Floats16;
  using HalfFloats = Floats8;
  static constexpr int kBytes = 64;
  static constexpr bool kLargeTables = true, kSignedCodes = false;
  static constexpr bool kSmallQueries = true, kSmallWeights = true, kUnsignedWeights = true;
  static constexpr int kRegistersPerSum = 2, kSumRegisters = 16, kMaxPairedHeads = 4;
  static constexpr int kTileRows = 3, kTileRegisters = 4;
  static constexpr int kByteRows = 6, kByteRegisters = 4;
  using Bytes = __m512i;
  using Codes = __m512i;
  struct Ints {
    __m512i high, low;
  };
  struct Weights {
    __m512i high, low;
  };

  static KVANT_INLINE Bytes load(const void* from) { return _mm512_loadu_si512(from); }
  static KVANT_INLINE void store(void* to, Bytes x) { _mm512_storeu_si512(to, x); }
  using Groups = __mmask8;
  static KVANT_INLINE Groups first_groups(int n) { return n < 8 ? 0x0f : 0xff; }
  static KVANT_INLINE Bytes load_groups(const void* from, Groups groups) {
    return _mm512_maskz_loadu_epi64(groups, from);
  }
  template <int N>
  static KVANT_INLINE Bytes shift_right(Bytes x) {
    return _mm512_srli_epi32(x, N);
  }
  template <int N>
  static KVANT_INLINE Bytes shift_left(Bytes x) {
    return _mm512_slli_epi32(x, N);
  }
  static KVANT_INLINE Bytes fill(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  static KVANT_INLINE Bytes both(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
  static KVANT_INLINE Bytes select(Bytes mask, Bytes a, Bytes b) {
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
  }
  static KVANT_INLINE Bytes from_lane_before(Bytes x, Bytes y) { return _mm512_shldi_epi32(x, y, 8); }
  static KVANT_INLINE Bytes from_octet_before(Bytes x, const void* first) {
    long long octet;
    __builtin_memcpy(&octet, first, sizeof octet);
    return _mm512_alignr_epi64(x, _mm512_set1_epi64(octet), 7);
  }

  template <bool Large>
  struct LevelTable {
    explicit LevelTable(const std::uint8_t* from)
        : table(Large ? load_groups(from, 0x0f)
                      : _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))) {}
    KVANT_INLINE Bytes look_up(Bytes x) const {
      return Large ? _mm512_permutexvar_epi8(x, table) : _mm512_shuffle_epi8(table, x);
    }
    __m512i table;
  };
  struct ByteTable {
    explicit ByteTable(const std::uint8_t* from)
        : t0(load(from)), t1(load(from + 64)), t2(load(from + 128)), t3(load(from + 192)) {}
    KVANT_INLINE Bytes look_up(Bytes x) const {
      return _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), _mm512_permutex2var_epi8(t0, x, t1),
                                    _mm512_permutex2var_epi8(t2, x, t3));
    }
    __m512i t0, t1, t2, t3;
  };

  template <int B, int R>
  static KVANT_INLINE Bytes state_levels(const Bytes (&planes)[B], const Bytes& before) {
    constexpr long long kMixed = matrix_of(kvant::kTrellisCodes[B - 1], kvant::mixed_state);
    constexpr long long kFolded = matrix_of(kvant::kTrellisCodes[B - 1], kvant::folded_state);
    const Bytes state = states<Avx512, B, R>(planes, before);
    return _mm512_avg_epu8(
        _mm512_gf2p8affine_epi64_epi8(state, _mm512_set1_epi64(kMixed), kvant::kTableBias),
        _mm512_gf2p8affine_epi64_epi8(state, _mm512_set1_epi64(kFolded), kvant::kTableBias));
  }

  static KVANT_INLINE Codes split(Bytes x) { return x; }
  static KVANT_INLINE Bytes lower(Bytes x) { return _mm512_xor_si512(x, fill(0x80)); }

  using ByteSums = __m512i;
  static KVANT_INLINE ByteSums no_byte_sums() { return _mm512_setzero_si512(); }
  static KVANT_INLINE void multiply_bytes(ByteSums& sums, std::int32_t of_row, Bytes lanes) {
    sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(of_row), lanes);
  }
  static KVANT_INLINE __m512 byte_sums_to_floats(ByteSums sums) { return _mm512_cvtepi32_ps(sums); }

  using MixInts = Ints;
  static KVANT_INLINE MixInts no_mix_sums() { return sums_from(0); }
  static KVANT_INLINE Ints sums_from(std::int32_t number) {
    return {_mm512_setzero_si512(), _mm512_set1_epi32(number)};
  }
  static KVANT_INLINE void multiply_query(Ints& sums, Codes codes, const std::uint32_t* quad) {
    sums.high = _mm512_dpbusd_epi32(sums.high, codes, _mm512_set1_epi32(static_cast<int>(quad[0])));
    sums.low = _mm512_dpbusd_epi32(sums.low, codes, _mm512_set1_epi32(static_cast<int>(quad[1])));
  }
  static KVANT_INLINE void multiply_small_query(Ints& sums, Codes codes, const std::uint32_t* quad) {
    sums.low = _mm512_dpbusd_epi32(sums.low, codes, _mm512_set1_epi32(static_cast<int>(quad[1])));
  }
  static KVANT_INLINE Weights load_weights(const std::uint64_t* octet) {
    return {_mm512_set1_epi64(static_cast<long long>(octet[0])),
            _mm512_set1_epi64(static_cast<long long>(octet[1]))};
  }
  static KVANT_INLINE Weights load_weights(const std::uint64_t* lower, const std::uint64_t* upper) {
    const Weights both = load_weights(lower);
    return {_mm512_mask_set1_epi64(both.high, 0xf0, static_cast<long long>(upper[0])),
            _mm512_mask_set1_epi64(both.low, 0xf0, static_cast<long long>(upper[1]))};
  }
  static KVANT_INLINE void multiply_weights(Ints& sums, Codes codes, const Weights& weights) {
    sums.high = _mm512_dpbusd_epi32(sums.high, codes, weights.high);
    sums.low = _mm512_dpbusd_epi32(sums.low, codes, weights.low);
  }
  static KVANT_INLINE void multiply_small_weights(Ints& sums, Codes codes, const Weights& weights) {
    sums.low = _mm512_dpbusd_epi32(sums.low, weights.low, codes);
  }
  static KVANT_INLINE __m512i total(const Ints& sums) {
    return _mm512_add_epi32(_mm512_slli_epi32(sums.high, 8), sums.low);
  }
  static KVANT_INLINE void store_lanes(const Ints& sums, std::int32_t* out) {
    _mm512_storeu_si512(out, total(sums));
  }
  static KVANT_INLINE __m512 to_floats(const Ints& sums) { return _mm512_cvtepi32_ps(total(sums)); }
  static KVANT_INLINE void add_octets(const Ints& sums, std::int32_t bias, float factor, const float* scale,
                                      float* out, Groups groups) {
    add_times(sums, bias, _mm256_set1_ps(factor), scale, out, groups);
  }
  // Adds up two lanes of each octet of two positions, whose rows of `out` and `scale` are `stride` values
  // apart.
  static KVANT_INLINE void add_octet_pairs(const Ints& first, const Ints& second, std::int32_t bias,
                                           float factor, const float* scale, float* out, int stride,
                                           Groups groups) {
    const __m512i kEven = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i kOdd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __m512i a = total(first), b = total(second);
    const __m512i octets =
        _mm512_add_epi32(_mm512_permutex2var_epi32(a, kEven, b), _mm512_permutex2var_epi32(a, kOdd, b));
    const __m512 values = _mm512_cvtepi32_ps(_mm512_sub_epi32(octets, _mm512_set1_epi32(bias)));
    const auto both = [&](const float* from) __attribute__((always_inline)) {
      return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_maskz_loadu_ps(groups, from)),
                                _mm256_maskz_loadu_ps(groups, from + stride), 1);
    };
    __m512 by = _mm512_set1_ps(factor);
    if (scale != nullptr) by = _mm512_mul_ps(by, both(scale));
    const __m512 result = _mm512_fmadd_ps(values, by, both(out));
    _mm256_mask_storeu_ps(out, groups, _mm512_castps512_ps256(result));
    _mm256_mask_storeu_ps(out + stride, groups, _mm512_extractf32x8_ps(result, 1));
  }
  static KVANT_INLINE void add_halves(const Ints& sums, float lower, float upper, const float* scale,
                                      float* out) {
    add_times(sums, 0, _mm256_set_m128(_mm_set1_ps(upper), _mm_set1_ps(lower)), scale, out, 0xff);
  }
  static KVANT_INLINE void add_times(const Ints& sums, std::int32_t bias, __m256 by, const float* scale,
                                     float* out, Groups mask) {
    const __m512i lanes = total(sums);
    const __m256i octets = _mm512_cvtepi64_epi32(_mm512_add_epi32(lanes, _mm512_srli_epi64(lanes, 32)));
    const __m256 values = _mm256_cvtepi32_ps(_mm256_sub_epi32(octets, _mm256_set1_epi32(bias)));
    if (scale != nullptr) by = _mm256_mul_ps(by, _mm256_maskz_loadu_ps(mask, scale));
    _mm256_mask_storeu_ps(out, mask, _mm256_fmadd_ps(values, by, _mm256_maskz_loadu_ps(mask, out)));
  }

  static KVANT_INLINE __m512i high_bytes(__m512i numbers) {
    return _mm512_srai_epi32(_mm512_add_epi32(numbers, _mm512_set1_epi32(128)), 8);
  }
  static KVANT_INLINE void pack_query(const std::int32_t* numbers, int channels, std::uint32_t (*quads)[2]) {
    channels == 8 ? pack_eight(numbers, quads) : BytePacking::pack_query(numbers, channels, quads);
  }
  static KVANT_INLINE void pack_eight(const std::int32_t* numbers, std::uint32_t (*quads)[2]) {
    const __m512i groups01 = _mm512_loadu_si512(numbers), groups23 = _mm512_loadu_si512(numbers + 16);
    const auto bytes = [](__m512i x, __m512i y) __attribute__((always_inline)) {
      return _mm256_set_m128i(_mm512_cvtepi32_epi8(y), _mm512_cvtepi32_epi8(x));
    };
    const __m512i both =
        _mm512_inserti64x4(_mm512_castsi256_si512(bytes(high_bytes(groups01), high_bytes(groups23))),
                           bytes(groups01, groups23), 1);
    // The high byte of number r of group k goes to byte 8 * r + k, the low byte to byte 8 * r + 4 + k.
    alignas(64) static constexpr auto kOrder = [] {
      struct {
        std::uint8_t from[64];
      } order{};
      for (int r = 0; r < 8; ++r) {
        for (int k = 0; k < 4; ++k) {
          order.from[8 * r + k] = static_cast<std::uint8_t>(8 * k + r);
          order.from[8 * r + 4 + k] = static_cast<std::uint8_t>(32 + 8 * k + r);
        }
      }
      return order;
    }();
    _mm512_storeu_si512(quads, _mm512_permutexvar_epi8(_mm512_load_si512(kOrder.from), both));
  }
  // Packs numbers into four quads.
  static KVANT_INLINE void pack_quads(const std::int32_t* numbers, std::uint32_t (*quads)[2]) {
    const __m512i x = _mm512_loadu_si512(numbers);
    const __m128i high = _mm512_cvtepi32_epi8(high_bytes(x)), low = _mm512_cvtepi32_epi8(x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(quads), _mm_unpacklo_epi32(high, low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(quads + 2), _mm_unpackhi_epi32(high, low));
  }
  // Packs numbers into two octets.
  static KVANT_INLINE void pack_weights(const std::int32_t* numbers, std::uint64_t (*octets)[2]) {
    const __m512i x = _mm512_loadu_si512(numbers);
    const __m128i high = _mm512_cvtepi32_epi8(high_bytes(x)), low = _mm512_cvtepi32_epi8(x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(octets[0]), _mm_unpacklo_epi64(high, low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(octets[1]), _mm_unpackhi_epi64(high, low));
  }
};

}  // namespace

namespace kvant::cpu {

const ByteKernels* avx512_kernels() {
  static constexpr ByteKernels kernels = kernels_of<Avx512>("avx512");
  return &kernels;
}

}  // namespace kvant::cpu

#else

namespace kvant::cpu {

const ByteKernels* avx512_kernels() {
  return nullptr;
}

}  // namespace kvant::cpu

#endif
