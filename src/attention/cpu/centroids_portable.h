// Centroids of vector_expansion_body.h in plain loops.

struct PortableCentroids {
  template <int Bits>
  static void unpack(const std::uint8_t* from, const std::uint8_t*, int n, std::uint16_t* out) {
    constexpr int kCodes = 4;  // whole bytes, and within two words of 4 bytes
    constexpr int kBytes = kCodes * Bits / 8;
    constexpr std::uint32_t kMask = (1U << Bits) - 1;
    for (int i = 0; i < n; i += kCodes, from += kBytes, out += kCodes) {
      std::uint32_t first, last;
      __builtin_memcpy(&first, from, sizeof first);
      __builtin_memcpy(&last, from + kBytes - sizeof last, sizeof last);
      out[0] = static_cast<std::uint16_t>(first & kMask);
      out[1] = static_cast<std::uint16_t>(first >> Bits & kMask);
      out[2] = static_cast<std::uint16_t>(last >> (32 - 2 * Bits) & kMask);
      out[3] = static_cast<std::uint16_t>(last >> (32 - Bits));
    }
  }
  template <int X, class Code>
  static KVANT_INLINE void store_quads(const Code* codes, std::ptrdiff_t stride, const std::uint8_t* table,
                                       std::ptrdiff_t next_quad, std::uint8_t* to) {
    for (int t = 0; t < 8; ++t) {
      const std::uint8_t* centroid = centroid_of<X>(codes[t * stride], table);
      for (int quad = 0; quad < X / 4; ++quad)
        __builtin_memcpy(to + quad * next_quad + t * 4, centroid + quad * 4, 4);
    }
  }
  template <int X, class Code>
  static KVANT_INLINE void store_octets(const Code* codes, std::ptrdiff_t stride, const std::uint8_t* table,
                                        std::uint8_t* to) {
    for (int t = 0; t < 8; ++t) {
      const std::uint8_t* centroid = centroid_of<X>(codes[t * stride], table);
      for (int c = 0; c < X; ++c) to[c * 8 + t] = centroid[c];
    }
  }
};
