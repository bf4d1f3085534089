// Attention of a tile of a prompt's queries in 8 bits (flashq.h): a page's keys and values become bytes once
// for all rows of the tile. Codes that are trellis states are bytes already, with a scale for each token.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/cpu/byte_kernels.h"
#include "attention/tile.h"
#include "cache/head_state.h"
#include "format/code_scheme.h"

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

  bool holds_bytes(const PageView& page, Side which);
  void prepare_queries(int group_channels);
  void prepare_keys(const PageView& page);
  void prepare_values(const PageView& page);
  void take_off_query_offset();
  float key_offset(int row) const;
  void invert_value_scales();
  void score(Rows rows);
  bool all_seen(const PageView& page) const;
  void weigh(Rows rows, const PageView& page, PartialAttention& partial);
  void mix(Rows rows, PartialAttention& partial);

  const ByteKernels* kernels_;
  const QueryTile* tile_ = nullptr;
  const AttentionRules* rules_ = nullptr;
  // [rows of the tile, d / 4]: word block * n + i holds channels n * (4 * block + k) + i, k = 0 .. 3, with n
  // that of group_channels_.
  std::vector<std::uint32_t> queries_;
  int group_channels_ = 0;            // 0: there are no words yet
  std::vector<float> query_scales_;   // [rows of the tile]
  std::vector<float> values_;         // [kPageTokens, d]: decoded K, then V
  std::vector<std::uint32_t> words_;  // [kPageTokens, d / 4]: keys' bytes before they are transposed
  std::vector<std::uint32_t> keys_;   // [d / 4, kPageTokens]
  std::vector<std::uint32_t> mixed_;  // [kPageTokens / 4, d]: values' bytes
  std::vector<std::int32_t> first_;   // [kPageTokens]: what queries' offset of 128 adds, taken off
  std::vector<float> key_scales_, value_scales_;    // [kPageTokens]
  std::vector<float> log_scales_, inverse_scales_;  // [kPageTokens]: of values
  std::vector<float> scores_;                       // [rows at hand, kPageTokens]
  std::vector<std::uint8_t> weights_;               // [rows at hand, kPageTokens]
  std::vector<float> key_offsets_, value_offsets_;  // [d]: what all tokens have in common; empty: 0
  std::vector<float> sums_;                         // [rows at hand]: of weights, as accumulators have them
  CodeParameters parameters_;                       // of a page's codes
  std::vector<float> factors_;                      // [rows at hand]
};

}  // namespace kvant::cpu
