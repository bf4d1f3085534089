// Looks up centroids (codebook_lookup_body.h) with AVX2, which holds 8 tokens of 4 channels in a register.
#include "device/cpu/kernels/centroid_pairs_avx2.h"

struct Avx2Centroids : Avx2CentroidPairs {
  // The words come from broadcast loads and are combined by blends, because shuffles are scarce.
  template <int X, class Codes>
  static KVANT_INLINE void look_up(const Codes& codes, const std::uint8_t* table, __m256i (&quads)[X / 4]) {
    const auto centroid = [&](int t) __attribute__((always_inline)) {
      return table + codes(t) * X;
    };
    if constexpr (X == 4) {
      const auto word = [&](int t) __attribute__((always_inline)) {
        return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(centroid(t))));
      };
      const __m256i low = _mm256_blend_epi32(_mm256_blend_epi32(word(0), word(1), 0x02),
                                             _mm256_blend_epi32(word(2), word(3), 0x08), 0x0c);
      const __m256i high = _mm256_blend_epi32(_mm256_blend_epi32(word(4), word(5), 0x20),
                                              _mm256_blend_epi32(word(6), word(7), 0x80), 0xc0);
      quads[0] = _mm256_blend_epi32(low, high, 0xf0);
    } else {
      const auto words = [&](int t) __attribute__((always_inline)) {
        return _mm256_broadcast_sd(reinterpret_cast<const double*>(centroid(t)));
      };
      // Combines tokens t, t + 1, t + 4 and t + 5.
      const auto four = [&](int t) __attribute__((always_inline)) {
        return _mm256_castpd_ps(_mm256_blend_pd(_mm256_blend_pd(words(t), words(t + 1), 0x2),
                                                _mm256_blend_pd(words(t + 4), words(t + 5), 0x8), 0xc));
      };
      const __m256 even = four(0), odd = four(2);
      quads[0] = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0x88));
      quads[1] = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xdd));
    }
  }

  template <int X, class Codes>
  static KVANT_INLINE void store_quads(const Codes& codes, const std::uint8_t* table,
                                       std::ptrdiff_t next_quad, std::uint8_t* to) {
    __m256i quads[X / 4];
    look_up<X>(codes, table, quads);
    for (int i = 0; i < X / 4; ++i) store(to + i * next_quad, quads[i]);
  }

  template <int X, class Codes>
  static KVANT_INLINE void store_octets(const Codes& codes, const std::uint8_t* table, std::uint8_t* to) {
    const __m256i by_channel =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i octets = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i quads[X / 4];
    look_up<X>(codes, table, quads);
    for (int i = 0; i < X / 4; ++i)
      store(to + i * 32, _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(quads[i], by_channel), octets));
  }
};
