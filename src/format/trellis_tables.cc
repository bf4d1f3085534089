#include "format/trellis.h"

namespace kvant {
namespace {

constexpr std::array<TrellisTable, kMaxTrellisBits> tables() {
  std::array<TrellisTable, kMaxTrellisBits> tables{};
  for (int i = 0; i < kMaxTrellisBits; ++i) {
    static_cast<TrellisCode&>(tables[i]) = kTrellisCodes[i];
    for (int state = 0; state < kTrellisStates; ++state)
      tables[i].levels[state] = static_cast<std::int8_t>(state_level(kTrellisCodes[i], state));
  }
  return tables;
}

constexpr std::array<TrellisTable, kMaxTrellisBits> kTables = tables();

}  // namespace

std::span<const TrellisTable> trellis_tables() {
  return kTables;
}

}  // namespace kvant
