#include "format/trellis.h"

namespace kvant {
namespace {

constexpr TrellisTable table_of(const TrellisCode& code) {
  TrellisTable table{code, {}};
  for (int state = 0; state < kTrellisStates; ++state)
    table.levels[state] = static_cast<std::int8_t>(state_level(code, state));
  return table;
}

constexpr std::array<TrellisTable, kMostTrellisBits> kTables = {
    table_of({.bits = 1, .scale = 0.01228F, .mix = 7, .fold = 2, .fold_mask = 0x24}),
    table_of({.bits = 2, .scale = 0.02444F, .mix = 6, .fold = 2, .fold_mask = 0xd0}),
    table_of({.bits = 3, .scale = 0.02450F, .mix = 5, .fold = 2, .fold_mask = 0xf4}),
    table_of({.bits = 4, .scale = 0.02534F, .mix = 6, .fold = 3, .fold_mask = 0xf0}),
    table_of({.bits = 5, .scale = 0.02846F, .mix = 7, .fold = 3, .fold_mask = 0xf8}),
    table_of({.bits = 6, .scale = 0.03244F, .mix = 5, .fold = 2, .fold_mask = 0xfc}),
};

}  // namespace

std::span<const TrellisTable> trellis_tables() {
  return kTables;
}

}  // namespace kvant
