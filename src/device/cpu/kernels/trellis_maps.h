// Turns the maps of trellis_code.h into matrices for GFNI's instructions. The files of instruction sets with
// GFNI include this header inside their namespaces.

// matrix_of() returns a linear map of bytes as gf2p8affine needs it. Byte 7 - i tells which bits add up to
// bit i.
using LinearMap = int (*)(const kvant::TrellisCode&, int);
constexpr long long matrix_of(const kvant::TrellisCode& code, LinearMap map) {
  unsigned long long matrix = 0;
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      const unsigned long long bit = map(code, 1 << from) >> to & 1;
      matrix |= bit << (8 * (7 - to) + from);
    }
  }
  return static_cast<long long>(matrix);
}
