// All pairs of tcq1 to tcq6: one kernel for each head size, which takes the bits as arguments.
#pragma once

#include <array>
#include <cstdio>

#include "attention/cuda/kernels/entry.cuh"
#include "attention/cuda/pairs/trellis.cuh"
#include "format/format.h"

namespace kvant::cuda {

inline constexpr int kTrellisPairs = kMaxTrellisBits * kMaxTrellisBits;

struct TrellisNames {
  char key[5], value[5], kernel[32];
};

inline int page_bytes_of(const char* format, int d) {
  return round_up_16(static_cast<int>(find_format(format)->page_bytes(d)));
}

// Sets: of four query heads.
template <int Sets>
std::array<DecodeKernel, 2 * kTrellisPairs> trellis_entries() {
  static TrellisNames names[kTrellisPairs];
  std::array<DecodeKernel, 2 * kTrellisPairs> entries;
  for (int i = 0; i < kTrellisPairs; ++i) {
    const int key_bits = 1 + i / kMaxTrellisBits;
    const int value_bits = 1 + i % kMaxTrellisBits;
    std::snprintf(names[i].key, sizeof names[i].key, "tcq%d", key_bits);
    std::snprintf(names[i].value, sizeof names[i].value, "tcq%d", value_bits);
    std::snprintf(names[i].kernel, sizeof names[i].kernel, "cuda/sm90/tcq%d+tcq%d", key_bits, value_bits);
    for (const int d : {64, 128}) {
      DecodeKernel entry =
          d == 64 ? decode_entry<TrellisPair<64, Sets>, 64>(names[i].kernel, names[i].key, names[i].value)
                  : decode_entry<TrellisPair<128, Sets>, 128>(names[i].kernel, names[i].key, names[i].value);
      entry.key_bytes = page_bytes_of(names[i].key, d);
      entry.value_bytes = page_bytes_of(names[i].value, d);
      entries[2 * i + (d == 64 ? 0 : 1)] = entry;
    }
  }
  return entries;
}

}  // namespace kvant::cuda
