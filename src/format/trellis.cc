#include "format/trellis.h"

#include <cstring>

#include "base/simd_clones.h"
#include "format/affine_row.h"

namespace kvant {
namespace {

// Computes levels[i], the entry of `table` for the 8 bits that end at bit (i + 1) * bits. `stream` begins
// with the 8 bits before bit 0 and has one spare byte at its end.
KVANT_SIMD_CLONES void look_up_states(const std::byte* stream, int n, int bits, const float* table,
                                      float* levels) {
  for (int i = 0; i < n; ++i) {
    const int first = (i + 1) * bits;
    std::uint16_t pair;
    std::memcpy(&pair, stream + first / 8, sizeof pair);
    levels[i] = table[pair >> (first % 8) & (kTrellisStates - 1)];
  }
}

}  // namespace

TrellisLevels trellis_levels(const TrellisTable& table) {
  TrellisLevels levels;
  for (int s = 0; s < kTrellisStates; ++s) levels[s] = table.scale * static_cast<float>(table.levels[s]);
  return levels;
}

void decode_trellis(const std::byte* packed, int n, int bits, const TrellisLevels& levels, float* shape) {
  const int size = n * bits / 8;
  std::array<std::byte, kMaxHeadDim * kMaxTrellisBits / 8 + 2> stream;
  stream[0] = packed[size - 1];
  std::memcpy(stream.data() + 1, packed, size);
  stream[size + 1] = packed[0];
  look_up_states(stream.data(), n, bits, levels.data(), shape);
}

}  // namespace kvant
