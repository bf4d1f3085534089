// Centroids of vector_expansion_body.h with AVX2: 4 tokens of 4 channels in half a register.

struct Avx2Centroids {
  // Bytes with what a 16-bit code's place is made of: the code is the upper bits of lane * 2^(16 - Bits -
  // first), `first` the bit of the lane that it begins at.
  template <int Bits>
  static KVANT_INLINE __m128i unpack_eight(__m128i bytes) {
    static_assert(Bits == 10 || Bits == 12);
    const __m128i pairs =
        _mm_shuffle_epi8(bytes, Bits == 12 ? _mm_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11)
                                           : _mm_setr_epi8(0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9));
    const __m128i to_the_top =
        Bits == 12 ? _mm_setr_epi16(16, 1, 16, 1, 16, 1, 16, 1) : _mm_setr_epi16(64, 16, 4, 1, 64, 16, 4, 1);
    return _mm_srli_epi16(_mm_mullo_epi16(pairs, to_the_top), 16 - Bits);
  }
  template <int Bits>
  static void unpack(const std::uint8_t* from, const std::uint8_t* end, int n, std::uint16_t* out) {
    for (int i = 0; i < n; i += 8, from += Bits, out += 8) {
      __m128i bytes;
      if (end - from >= 16) {
        bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      } else {
        bytes = _mm_setzero_si128();
        __builtin_memcpy(&bytes, from, Bits);
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), unpack_eight<Bits>(bytes));
    }
  }

  static KVANT_INLINE __m128i four(const std::uint8_t* from) {
    int bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    return _mm_cvtsi32_si128(bytes);
  }
  static KVANT_INLINE __m128i eight(const std::uint8_t* from) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  }
  static KVANT_INLINE void store(std::uint8_t* to, __m128i x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x);
  }

  // Four words that lie apart, through general registers.
  static KVANT_INLINE __m128i gather_words(const std::uint8_t* const (&from)[4]) {
    std::uint32_t words[4];
    for (int i = 0; i < 4; ++i) __builtin_memcpy(&words[i], from[i], sizeof words[i]);
    const auto pair = [&](int low) {
      return static_cast<long long>(words[low] | static_cast<std::uint64_t>(words[low + 1]) << 32);
    };
    return _mm_set_epi64x(pair(2), pair(0));
  }

  // quads[i]: channels 4 * i .. 4 * i + 3 of 4 tokens. Shuffles: words are put together by shuffles, which a
  // caller that shuffles a lot itself has no room for.
  template <int X, bool Shuffles, class Code>
  static KVANT_INLINE void look_up(const Code* codes, std::ptrdiff_t stride, const std::uint8_t* table,
                                   __m128i (&quads)[X / 4]) {
    const std::uint8_t* centroids[4];
    for (int t = 0; t < 4; ++t) centroids[t] = centroid_of<X>(codes[t * stride], table);
    if constexpr (X == 4 && !Shuffles) {
      quads[0] = gather_words(centroids);
    } else if constexpr (X == 4) {
      quads[0] = _mm_unpacklo_epi64(_mm_unpacklo_epi32(four(centroids[0]), four(centroids[1])),
                                    _mm_unpacklo_epi32(four(centroids[2]), four(centroids[3])));
    } else {
      const __m128i a = _mm_unpacklo_epi32(eight(centroids[0]), eight(centroids[1]));
      const __m128i b = _mm_unpacklo_epi32(eight(centroids[2]), eight(centroids[3]));
      quads[0] = _mm_unpacklo_epi64(a, b);
      quads[1] = _mm_unpackhi_epi64(a, b);
    }
  }

  template <int X, class Code>
  static KVANT_INLINE void store_quads(const Code* codes, std::ptrdiff_t stride, const std::uint8_t* table,
                                       std::ptrdiff_t next_quad, std::uint8_t* to) {
    for (int t = 0; t < 8; t += 4) {
      __m128i quads[X / 4];
      look_up<X, true>(codes + t * stride, stride, table, quads);
      for (int i = 0; i < X / 4; ++i) store(to + i * next_quad + t * 4, quads[i]);
    }
  }

  template <int X, class Code>
  static KVANT_INLINE void store_octets(const Code* codes, std::ptrdiff_t stride, const std::uint8_t* table,
                                        std::uint8_t* to) {
    const __m128i by_channel = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i first[X / 4], last[X / 4];
    look_up<X, false>(codes, stride, table, first);
    look_up<X, false>(codes + 4 * stride, stride, table, last);
    for (int i = 0; i < X / 4; ++i) {
      const __m128i a = _mm_shuffle_epi8(first[i], by_channel), b = _mm_shuffle_epi8(last[i], by_channel);
      store(to + i * 32, _mm_unpacklo_epi32(a, b));
      store(to + i * 32 + 16, _mm_unpackhi_epi32(a, b));
    }
  }
};
