// Wraps 8 F32 numbers in a register of AVX2. The files of instruction sets with AVX2 include this header
// inside their namespaces.

struct Floats8 {
  using Lanes = __m256;
  static constexpr int kLanes = 8;
  static KVANT_INLINE Lanes zero() { return _mm256_setzero_ps(); }
  static KVANT_INLINE Lanes fill(float x) { return _mm256_set1_ps(x); }
  static KVANT_INLINE Lanes load(const float* from) { return _mm256_loadu_ps(from); }
  static KVANT_INLINE void store(float* to, Lanes x) { _mm256_storeu_ps(to, x); }
  static KVANT_INLINE Lanes from_bf16(const std::uint16_t* from) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static KVANT_INLINE Lanes from_f16(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  // Puts magnitude and sign, which the sign extension has copied, into the places of an F32. A product
  // corrects the exponent's bias, and also normalizes denormals.
  static KVANT_INLINE Lanes from_e4m3(const std::uint8_t* from) {
    const __m256i x = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0x87f00000U));
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(x, 20), mask)),
                         fill(0x1p120F));
  }
  static KVANT_INLINE Lanes add(Lanes a, Lanes b) { return _mm256_add_ps(a, b); }
  static KVANT_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
  static KVANT_INLINE Lanes multiply(Lanes a, Lanes b) { return _mm256_mul_ps(a, b); }
  static KVANT_INLINE Lanes maximum(Lanes a, Lanes b) { return _mm256_max_ps(a, b); }
  static KVANT_INLINE float largest(Lanes x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static KVANT_INLINE Lanes exponential(Lanes x) {
    x = _mm256_max_ps(x, fill(kLowestExponent));
    const Lanes n =
        _mm256_round_ps(_mm256_mul_ps(x, fill(kLog2e)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Lanes f = _mm256_fnmadd_ps(n, fill(kLn2Low), _mm256_fnmadd_ps(n, fill(kLn2High), x));
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(exp_polynomial<Floats8>(f), _mm256_castsi256_ps(exponent));
  }
  // Returns 2^x by power_polynomial(), or 2^-126 if x < -126.
  static KVANT_INLINE Lanes power(Lanes x) {
    x = _mm256_max_ps(x, fill(-126));
    const Lanes n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(power_polynomial<Floats8>(_mm256_sub_ps(x, n)), _mm256_castsi256_ps(exponent));
  }
  // Stores numbers of 0 to 255 as rounded bytes.
  static KVANT_INLINE void store_bytes(std::uint8_t* to, Lanes x) {
    const __m256i numbers = _mm256_cvtps_epi32(x);
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }
  static KVANT_INLINE Lanes store_rounded(std::int32_t* to, Lanes x) {
    const __m256i numbers = _mm256_cvtps_epi32(x);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), numbers);
    return _mm256_cvtepi32_ps(numbers);
  }
  static KVANT_INLINE float sum(Lanes x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static KVANT_INLINE void store_sums(Lanes a, Lanes b, Lanes c, Lanes d, float* to) {
    const Lanes ab = add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const Lanes cd = add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const Lanes all = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
  }
};
