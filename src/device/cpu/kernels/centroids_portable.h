// Looks up centroids (codebook_lookup_body.h) in plain loops.

struct PortableCentroids {
  template <int X, class Codes>
  static KVANT_INLINE void store_quads(const Codes& codes, const std::uint8_t* table,
                                       std::ptrdiff_t next_quad, std::uint8_t* to) {
    for (int t = 0; t < 8; ++t) {
      const std::uint8_t* centroid = table + codes(t) * X;
      for (int quad = 0; quad < X / 4; ++quad)
        __builtin_memcpy(to + quad * next_quad + t * 4, centroid + quad * 4, 4);
    }
  }
  template <int X, class Codes>
  static KVANT_INLINE void store_octets(const Codes& codes, const std::uint8_t* table, std::uint8_t* to) {
    for (int t = 0; t < 8; ++t) {
      const std::uint8_t* centroid = table + codes(t) * X;
      for (int c = 0; c < X; ++c) to[c * 8 + t] = centroid[c];
    }
  }
  template <bool Mix>
  static KVANT_INLINE void store_pairs(const std::uint8_t* codes, const kvant::cpu::ByteCodes& page,
                                       std::uint8_t* to) {
    for (int i = 0; i < 64; ++i) {
      const std::uint8_t* pair = page.centroids + codes[i] * 4;
      const int token = Mix ? i % 8 : i / 4, group = Mix ? i / 8 : i % 4;
      for (int c = 0; c < 2; ++c) {
        const int at = Mix ? (group * 2 + c) * 8 + token : (group / 2 * 16 + token) * 4 + group % 2 * 2 + c;
        to[at] = pair[c];
      }
    }
  }
};
