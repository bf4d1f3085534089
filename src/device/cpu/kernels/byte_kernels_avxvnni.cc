// Implements the kernels with AVX2, AVX-VNNI and GFNI (Alder Lake, Zen 5 and later). Processors with AVX-VNNI
// multiply bytes in registers of AVX2. A number of 16 bits is split into two bytes, which are multiplied
// separately.
#include "device/cpu/kernels/byte_kernels.h"

#if defined(__AVXVNNI__) && defined(__GFNI__) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace {

#include "device/cpu/kernels/byte_kernels_body.h"
#include "device/cpu/kernels/byte_lanes_avx2.h"
#include "device/cpu/kernels/trellis_maps.h"

struct AvxVnni : Avx2 {
  static constexpr bool kSmallQueries = true, kSmallWeights = true, kUnsignedWeights = true;
  static constexpr int kRegistersPerSum = 2, kSumRegisters = 12;
  static constexpr int kTileRows = 2, kTileRegisters = 2;
  static constexpr int kByteRows = 6, kByteRegisters = 2;
  using Codes = __m256i;
  struct Ints {
    __m256i high, low;
  };

  template <int B, int R>
  static KVANT_INLINE Bytes state_levels(const Bytes (&planes)[B], const Bytes& before) {
    constexpr long long kMixed = matrix_of(kvant::kTrellisCodes[B - 1], kvant::mixed_state);
    constexpr long long kFolded = matrix_of(kvant::kTrellisCodes[B - 1], kvant::folded_state);
    const Bytes state = states<AvxVnni, B, R>(planes, before);
    return _mm256_avg_epu8(
        _mm256_gf2p8affine_epi64_epi8(state, _mm256_set1_epi64x(kMixed), kvant::kTableBias),
        _mm256_gf2p8affine_epi64_epi8(state, _mm256_set1_epi64x(kFolded), kvant::kTableBias));
  }

  static KVANT_INLINE Codes split(Bytes x) { return x; }
  static KVANT_INLINE Bytes lower(Bytes x) { return _mm256_xor_si256(x, fill(0x80)); }

  using ByteSums = __m256i;
  static KVANT_INLINE ByteSums no_byte_sums() { return _mm256_setzero_si256(); }
  static KVANT_INLINE void multiply_bytes(ByteSums& sums, std::int32_t of_row, Bytes lanes) {
    sums = _mm256_dpbusd_avx_epi32(sums, _mm256_set1_epi32(of_row), lanes);
  }
  static KVANT_INLINE __m256 byte_sums_to_floats(ByteSums sums) { return _mm256_cvtepi32_ps(sums); }

  using MixInts = Ints;
  static KVANT_INLINE MixInts no_mix_sums() { return sums_from(0); }
  static KVANT_INLINE Ints sums_from(std::int32_t number) {
    return {_mm256_setzero_si256(), _mm256_set1_epi32(number)};
  }
  static KVANT_INLINE void multiply_query(Ints& sums, Codes codes, const std::uint32_t* quad) {
    sums.high = _mm256_dpbusd_avx_epi32(sums.high, codes, _mm256_set1_epi32(static_cast<int>(quad[0])));
    sums.low = _mm256_dpbusd_avx_epi32(sums.low, codes, _mm256_set1_epi32(static_cast<int>(quad[1])));
  }
  static KVANT_INLINE void multiply_small_query(Ints& sums, Codes codes, const std::uint32_t* quad) {
    sums.low = _mm256_dpbusd_avx_epi32(sums.low, codes, _mm256_set1_epi32(static_cast<int>(quad[1])));
  }
  static KVANT_INLINE void multiply_weights(Ints& sums, Codes codes, const Weights& weights) {
    sums.high = _mm256_dpbusd_avx_epi32(sums.high, codes, weights.first);
    sums.low = _mm256_dpbusd_avx_epi32(sums.low, codes, weights.second);
  }
  static KVANT_INLINE void multiply_small_weights(Ints& sums, Codes codes, const Weights& weights) {
    sums.low = _mm256_dpbusd_avx_epi32(sums.low, weights.second, codes);
  }
  static KVANT_INLINE __m256i total(const Ints& sums) {
    return _mm256_add_epi32(_mm256_slli_epi32(sums.high, 8), sums.low);
  }
  static KVANT_INLINE void store_lanes(const Ints& sums, std::int32_t* out) {
    Avx2::store_lanes(total(sums), out);
  }
  static KVANT_INLINE __m256 to_floats(const Ints& sums) { return _mm256_cvtepi32_ps(total(sums)); }
  static KVANT_INLINE void add_octets(const Ints& sums, std::int32_t bias, float factor, const float* scale,
                                      float* out, Groups groups) {
    Avx2::add_octets(total(sums), bias, factor, scale, out, groups);
  }

  // Returns the lowest byte of each lane of 4 registers, side by side.
  static KVANT_INLINE __m256i lowest_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i low_byte = _mm256_set1_epi32(0xff);
    const __m256i ab =
        _mm256_or_si256(_mm256_and_si256(a, low_byte), _mm256_slli_epi32(_mm256_and_si256(b, low_byte), 8));
    const __m256i cd = _mm256_or_si256(_mm256_and_si256(c, low_byte), _mm256_slli_epi32(d, 8));
    return _mm256_blend_epi16(ab, _mm256_slli_epi32(cd, 16), 0xaa);
  }
  static KVANT_INLINE void pack_query(const std::int32_t* numbers, int channels, std::uint32_t (*quads)[2]) {
    if (channels != 8) return BytePacking::pack_query(numbers, channels, quads);
    __m256i low[4], high[4];
    for (int k = 0; k < 4; ++k) {
      low[k] = load(numbers + 8 * k);
      high[k] = _mm256_srai_epi32(_mm256_add_epi32(low[k], _mm256_set1_epi32(128)), 8);
    }
    store_pairs(lowest_bytes(high[0], high[1], high[2], high[3]),
                lowest_bytes(low[0], low[1], low[2], low[3]), quads);
  }
  // Packs 16 numbers into four quads. Each quad has the high bytes of its four numbers, then the low bytes.
  static KVANT_INLINE void pack_quads(const std::int32_t* numbers, std::uint32_t (*quads)[2]) {
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(load(numbers), load(numbers + 8)), 0xd8);
    const __m256i high = _mm256_srai_epi16(_mm256_add_epi16(words, _mm256_set1_epi16(128)), 8);
    const __m256i low = _mm256_and_si256(words, _mm256_set1_epi16(0xff));
    const __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(high, _mm256_set1_epi16(0xff)), low);
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(quads), _mm256_shuffle_epi8(bytes, order));
  }
  // Packs 16 numbers into two octets. Each octet has the high bytes of its eight numbers, then the low bytes.
  static KVANT_INLINE void pack_weights(const std::int32_t* numbers, std::uint64_t (*octets)[2]) {
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(load(numbers), load(numbers + 8)), 0xd8);
    const __m256i high = _mm256_srai_epi16(_mm256_add_epi16(words, _mm256_set1_epi16(128)), 8);
    const __m256i low = _mm256_and_si256(words, _mm256_set1_epi16(0xff));
    const __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(high, _mm256_set1_epi16(0xff)), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(octets), bytes);
  }
};

}  // namespace

namespace kvant::cpu {

const ByteKernels* avxvnni_kernels() {
  static constexpr ByteKernels kernels = kernels_of<AvxVnni>("avxvnni");
  return &kernels;
}

}  // namespace kvant::cpu

#else

namespace kvant::cpu {

const ByteKernels* avxvnni_kernels() {
  return nullptr;
}

}  // namespace kvant::cpu

#endif
