// Looks up centroids of 2 channels with AVX2 (store_pairs of codebook_lookup_body.h). Half of the codes use
// tables of 16 bytes, which cost shuffles. The centroids of the other half are loaded one by one, which costs
// loads. A processor does both at the same time.

struct Avx2CentroidPairs {
  static KVANT_INLINE __m256i sixteen(const std::uint8_t* from) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  // Looks up 32 codes in a table of 256 bytes. The low four bits select from tables of 16 entries. Bit 4
  // selects within pairs of tables, because a shuffle index with its highest bit set gives 0. The remaining
  // bits select in a tree.
  struct Table {
    KVANT_INLINE Table(const std::uint8_t* table, __m256i codes) : table(table), codes(codes) {
      const __m256i highest = _mm256_set1_epi8(static_cast<char>(0x80));
      const __m256i bit4 = _mm256_and_si256(_mm256_slli_epi16(codes, 3), highest);
      if_clear = _mm256_or_si256(_mm256_and_si256(codes, _mm256_set1_epi8(0x0f)), bit4);
      if_set = _mm256_xor_si256(if_clear, highest);
    }
    KVANT_INLINE __m256i look_up() const { return node<7>(0); }
    // Selects among the entries from `first` on by bits 0 .. Bit of the code.
    template <int Bit>
    KVANT_INLINE __m256i node(int first) const {
      if constexpr (Bit == 4) {
        return _mm256_or_si256(_mm256_shuffle_epi8(sixteen(table + first), if_clear),
                               _mm256_shuffle_epi8(sixteen(table + first + 16), if_set));
      } else {
        return _mm256_blendv_epi8(node<Bit - 1>(first), node<Bit - 1>(first + (1 << Bit)),
                                  _mm256_slli_epi16(codes, 7 - Bit));
      }
    }
    const std::uint8_t* table;
    __m256i codes, if_clear, if_set;
  };

  // Returns the words of 16 codes; code(i) is the code of word i.
  template <class Code>
  static KVANT_INLINE __m256i words(const std::uint8_t* centroids, const Code& code) {
    const auto entry = [&](int i) __attribute__((always_inline)) {
      const std::uint8_t* at = centroids + 4 * static_cast<std::uint64_t>(code(i));
      return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(at)));
    };
    const auto two = [&](int i) __attribute__((always_inline)) {
      return _mm256_blend_epi16(entry(i), entry(i + 1), 0xaa);
    };
    const auto eight = [&](int i) __attribute__((always_inline)) {
      return _mm256_blend_epi32(_mm256_blend_epi32(two(i), two(i + 2), 0x22),
                                _mm256_blend_epi32(two(i + 4), two(i + 6), 0x88), 0xcc);
    };
    return _mm256_blend_epi32(eight(0), eight(8), 0xf0);
  }

  static KVANT_INLINE void store(std::uint8_t* to, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  }

  // Stores [16 tokens][4 groups]. The first 8 tokens use the tables, and the centroids of the others are
  // loaded one by one.
  static KVANT_INLINE void store_quads_of_pairs(const std::uint8_t* codes, const kvant::cpu::ByteCodes& page,
                                                std::uint8_t* to) {
    constexpr int kQuadBytes = 64;  // bytes of one quad of 16 tokens
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i channel0 = Table(page.channels, first).look_up();
    const __m256i channel1 = Table(page.channels + 256, first).look_up();
    const __m256 low = _mm256_castsi256_ps(_mm256_unpacklo_epi8(channel0, channel1));
    const __m256 high = _mm256_castsi256_ps(_mm256_unpackhi_epi8(channel0, channel1));
    store(to, _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88)));
    store(to + kQuadBytes, _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd)));
    for (int quad = 0; quad < 2; ++quad) {
      const std::uint8_t* second = codes + 32 + 2 * quad;
      const auto code = [&](int i) __attribute__((always_inline)) {
        return second[i / 2 * 4 + i % 2];
      };
      store(to + quad * kQuadBytes + 32, words(page.centroids, code));
    }
  }

  // Stores [8 groups][8 tokens]. The first 4 groups use the tables, and the centroids of the others are
  // loaded one by one.
  static KVANT_INLINE void store_octets_of_pairs(const std::uint8_t* codes, const kvant::cpu::ByteCodes& page,
                                                 std::uint8_t* to) {
    const __m256i by_channel =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i channel0 = Table(page.channels, first).look_up();
    const __m256i channel1 = Table(page.channels + 256, first).look_up();
    // The first register holds even groups, the second odd groups.
    const __m256i even = _mm256_unpacklo_epi64(channel0, channel1);
    const __m256i odd = _mm256_unpackhi_epi64(channel0, channel1);
    store(to, _mm256_permute2x128_si256(even, odd, 0x20));
    store(to + 32, _mm256_permute2x128_si256(even, odd, 0x31));
    for (int two_groups = 2; two_groups < 4; ++two_groups) {
      const std::uint8_t* second = codes + 16 * two_groups;
      const auto code = [&](int i) __attribute__((always_inline)) {
        return second[i];
      };
      store(to + 32 * two_groups, _mm256_shuffle_epi8(words(page.centroids, code), by_channel));
    }
  }

  template <bool Mix>
  static KVANT_INLINE void store_pairs(const std::uint8_t* codes, const kvant::cpu::ByteCodes& page,
                                       std::uint8_t* to) {
    if constexpr (Mix) {
      store_octets_of_pairs(codes, page, to);
    } else {
      store_quads_of_pairs(codes, page, to);
    }
  }
};
