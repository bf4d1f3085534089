// Splits the levels of a trellis's states into tables of nibbles. The files of instruction sets with fast
// tables of 16 entries include this header inside their namespaces.

// The table holds the levels of 16 nibbles. The level of a state (trellis_code.h) is the sum of two entries,
// for the low and the high nibble of the mixed state. The sum is right if both shifts add up to at least 8.
// No bit that the mix changes is then folded, so every bit of the mixed state has its own weight. A mix by 4
// or more undoes itself.
struct NibbleTable {
  std::uint8_t levels[16];
};
constexpr NibbleTable nibble_levels(const kvant::TrellisCode& code, int shift, int bias) {
  NibbleTable table{};
  for (int nibble = 0; nibble < 16; ++nibble) {
    const int state = kvant::mixed_state(code, nibble << shift);
    table.levels[nibble] = static_cast<std::uint8_t>(kvant::state_level(code, state) + bias);
  }
  return table;
}
