// Centroids of vector_expansion_body.h in plain loops.

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
};
