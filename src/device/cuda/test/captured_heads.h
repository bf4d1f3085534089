// Gives tests the keys, values and queries that two KV heads of a real model produced. The bytes come from
// data/captured, in the order in which scripts/capture-heads.cc writes them. Each row has the channels of the
// first head, and then the channels of the second head.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/float16.h"
#include "base/geometry.h"

namespace kvant {

extern const unsigned char kCapturedHeads[];

namespace cuda {

inline constexpr int kCapturedPages = 2, kCapturedQueries = 48, kCapturedChannels = 128;

// Returns a row of kCapturedChannels BF16 numbers. The first 64 numbers belong to the first head.
inline const std::uint16_t* captured_row(int row) {
  return reinterpret_cast<const std::uint16_t*>(kCapturedHeads) +
         static_cast<std::ptrdiff_t>(row) * kCapturedChannels;
}

// Returns the first d channels of a captured page, [kPageTokens][d]. `seed` selects one of the pages, modulo
// their number.
inline std::vector<float> captured_page(Side side, int d, std::uint32_t seed) {
  const int first =
      (static_cast<int>(side) * kCapturedPages + static_cast<int>(seed % kCapturedPages)) * kPageTokens;
  std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d);
  for (int token = 0; token < kPageTokens; ++token)
    float_row_from_bf16(captured_row(first + token), values.data() + static_cast<std::ptrdiff_t>(token) * d,
                        d);
  return values;
}

// Returns the kCapturedChannels channels of query i, modulo the number of captured queries.
inline const std::uint16_t* captured_query(int i) {
  return captured_row(2 * kCapturedPages * kPageTokens + i % kCapturedQueries);
}

}  // namespace cuda
}  // namespace kvant
