// For tests only: pages of different sizes in one entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant::cuda {

// The pages of all heads and sides that a table's entry covers, side by side in a particular order: values
// from the last head to the first, then the keys likewise.
struct PackedEntry {
  std::vector<std::int64_t> offsets;  // [heads][2], like kvant_decode_layer::sealed_offsets
  std::int64_t bytes = 0;

  // page_bytes: [heads][2].
  explicit PackedEntry(const std::vector<std::size_t>& page_bytes) : offsets(page_bytes.size()) {
    for (const std::size_t side : {1, 0}) {
      for (std::size_t head = page_bytes.size() / 2; head-- > 0;) {
        offsets[2 * head + side] = bytes;
        bytes += static_cast<std::int64_t>(page_bytes[2 * head + side]);
      }
    }
  }
};

}  // namespace kvant::cuda
