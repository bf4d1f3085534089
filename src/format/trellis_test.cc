#include "format/trellis.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "format/bit_packing.h"

namespace kvant {
namespace {

// Returns the level that the symbols give to value i by definition. The last 8 bits of symbols 0 to i,
// circularly, select the level.
double level(const TrellisTable& table, const std::uint16_t* symbols, int n, int i) {
  int state = 0;
  for (int bit = 0; bit < kTrellisBits; ++bit) {
    const int at = ((i + 1) * table.bits - kTrellisBits + bit + n * table.bits) % (n * table.bits);
    state |= (symbols[at / table.bits] >> (at % table.bits) & 1) << bit;
  }
  return static_cast<double>(table.levels[state]) * table.scale;
}

TEST(Trellis, DecodesTheStateThatEndsAtEachValue) {
  for (const TrellisTable& table : trellis_tables()) {
    for (const int n : {16, 64, 80, 256, 512}) {
      std::mt19937 random(static_cast<std::uint32_t>(n));
      std::vector<std::uint16_t> symbols(n);
      for (std::uint16_t& symbol : symbols)
        symbol = static_cast<std::uint16_t>(random() % (1U << table.bits));
      std::vector<std::byte> packed(packed_bytes(n, table.bits));
      pack_codes(symbols.data(), n, table.bits, packed.data());
      std::vector<float> shape(n);
      decode_trellis(packed.data(), n, table.bits, trellis_levels(table), shape.data());
      for (int i = 0; i < n; ++i) ASSERT_FLOAT_EQ(shape[i], level(table, symbols.data(), n, i)) << table.bits;
    }
  }
}

}  // namespace
}  // namespace kvant
