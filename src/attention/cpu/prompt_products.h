// Attention of a tile of a prompt's queries in 8 bits (flashq.h): a page's keys and values become bytes once
// for all rows of the tile.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/cpu/byte_kernels.h"
#include "attention/tile.h"
#include "cache/head_state.h"

namespace kvant::cpu {

// Buffers of one thread are part of it.
class PromptProducts {
 public:
  explicit PromptProducts(const ByteKernels& kernels);

  // Whether attend() serves heads of `head_dim` channels by these rules: the instruction set multiplies
  // bytes, and softmax is exact.
  bool takes(const AttentionRules& rules) const;

  // The queries of the pages to come. Both must outlive them.
  void begin(const QueryTile& tile, const AttentionRules& rules);

  // Adds the page to `partial`, whose maxima become those of weights times their values' scales.
  void attend(const PageView& page, PartialAttention& partial);

 private:
  // Consecutive rows that go through all of it while their scores are near.
  struct Rows {
    int first, n;
  };

  void prepare_keys(const PageView& page);
  void prepare_values(const PageView& page);
  void score(Rows rows);
  bool all_seen(const PageView& page) const;
  void weigh(Rows rows, const PageView& page, PartialAttention& partial);
  void mix(Rows rows, PartialAttention& partial);

  const ByteKernels* kernels_;
  const QueryTile* tile_ = nullptr;
  const AttentionRules* rules_ = nullptr;
  std::vector<std::uint32_t> queries_;  // [rows of the tile, d / 4]: channels j, j + d/4, j + d/2, j + 3d/4
  std::vector<float> query_scales_;     // [rows of the tile]
  std::vector<float> values_;           // [kPageTokens, d]: decoded K, then V
  std::vector<std::uint32_t> words_;    // [kPageTokens, d / 4]: keys' bytes before they are transposed
  std::vector<std::uint32_t> keys_;     // [d / 4, kPageTokens]
  std::vector<std::uint32_t> mixed_;    // [kPageTokens / 4, d]: values' bytes
  std::vector<std::int32_t> first_;     // [kPageTokens]: what queries' offset of 128 adds, taken off
  std::vector<float> key_scales_, value_scales_;    // [kPageTokens]
  std::vector<float> log_scales_, inverse_scales_;  // [kPageTokens]: of values
  std::vector<float> scores_;                       // [rows at hand, kPageTokens]
  std::vector<std::uint8_t> weights_;               // [rows at hand, kPageTokens]
  std::vector<float> factors_;                      // [rows at hand]
};

}  // namespace kvant::cpu
