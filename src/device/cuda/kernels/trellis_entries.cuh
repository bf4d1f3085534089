// Makes the entries of all pairs of tcq1 to tcq6. One kernel for each head size takes the bits as arguments.
#pragma once

#include <array>
#include <cstdio>
#include <type_traits>

#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/page/known_format.h"
#include "device/cuda/pairs/trellis_strips.cuh"

namespace kvant::cuda {

inline constexpr int kTrellisPairs = kMaxTrellisBits * kMaxTrellisBits;

struct TrellisNames {
  char key[5], value[5], kernel[32];
};

inline int page_bytes_of(const char* format, int d) {
  return round_up_16(static_cast<int>(find_known_format(format)->format->page_bytes(d)));
}

// Returns the entries of all pairs of trellis formats, for heads of `Dims` channels each. Each kernel
// processes `Sets` sets of four query heads.
template <int Sets, int... Dims>
std::array<DecodeKernel, sizeof...(Dims) * kTrellisPairs> trellis_entries() {
  static TrellisNames names[kTrellisPairs];
  std::array<DecodeKernel, sizeof...(Dims) * kTrellisPairs> entries;
  auto entry = entries.begin();
  for (int i = 0; i < kTrellisPairs; ++i) {
    const int key_bits = 1 + i / kMaxTrellisBits;
    const int value_bits = 1 + i % kMaxTrellisBits;
    std::snprintf(names[i].key, sizeof names[i].key, "tcq%d", key_bits);
    std::snprintf(names[i].value, sizeof names[i].value, "tcq%d", value_bits);
    std::snprintf(names[i].kernel, sizeof names[i].kernel, "cuda/sm90/tcq%d+tcq%d", key_bits, value_bits);
    const auto add = [&]<int D>(std::integral_constant<int, D>) {
      *entry = decode_entry<TrellisPair<D, Sets>, D>(names[i].kernel, names[i].key, names[i].value);
      entry->key_bytes = page_bytes_of(names[i].key, D);
      entry->value_bytes = page_bytes_of(names[i].value, D);
      UnlikeHeadsKernel& unlike = entry->for_unlike_heads;
      unlike.bytes_of_bit = kPageTokens * D / 8;
      unlike.bytes_without_codes = entry->key_bytes - key_bits * unlike.bytes_of_bit;
      ++entry;
    };
    (add(std::integral_constant<int, Dims>{}), ...);
  }
  return entries;
}

}  // namespace kvant::cuda
