// Attends with a tile of many queries to whole pages of codes by integer products. A page's codes are
// expanded to bytes once for all rows of the tile, and the rows are integers of 16 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/cpu/kernels/byte_kernels.h"
#include "device/cpu/kernels/tile.h"
#include "format/page_view.h"

namespace kvant::cpu {

// An object contains the buffers of one thread, so each thread needs its own.
class TileProducts {
 public:
  explicit TileProducts(const ByteKernels& kernels);

  // Sets the queries for the pages that follow. Tile and rules must outlive the calls of attend(). All rules
  // are obeyed, but `products` must be real and `softmax` exact.
  void begin(const QueryTile& tile, const AttentionRules& rules);

  // Returns whether attend() supports the page. The codes of both sides must be numbers or states, which
  // bytes hold exactly.
  bool takes(const PageView& page) const;

  // Adds the page to `partial`.
  void attend(const PageView& page, PartialAttention& partial);

 private:
  // Holds one side of the current page. The bytes exceed the numbers to which the parameters apply by `bias`.
  struct Operand {
    CodeScheme scheme;
    CodeParameters parameters;
    std::vector<std::uint8_t> bytes;
    int bias = 0;
    int blocks() const { return std::max(1, scheme.channel_blocks); }
    int groups() const { return std::max(1, scheme.token_groups); }
    TokenParameters tokens(int group) const;
  };
  // Consecutive rows go through all steps of attend() while their scores are in the first-level cache.
  struct Rows {
    int first, n;
  };

  void expand(const PageSide& side, Side which, Operand& operand);
  void prepare_queries(Rows rows, const float* channel_scale);
  void sum_queries();
  void score(Rows rows);
  bool all_seen(const PageView& page) const;
  void weigh(Rows rows, const PageView& page, PartialAttention& partial);
  void mix(Rows rows, PartialAttention& partial);

  const ByteKernels* kernels_;
  const QueryTile* tile_ = nullptr;
  const AttentionRules* rules_ = nullptr;
  Operand k_, v_;
  std::vector<ByteQuery> queries_;  // [rows of the tile]
  // The flag is true if queries_ contain no scales of channels, so other pages can use them.
  bool prepared_ = false;
  std::vector<float> query_sums_;  // [rows of the tile, token groups of K]
  // Gives the token groups of query_sums_; 0 if query_sums_ is not set.
  int summed_groups_ = 0;
  std::vector<float> scores_;  // [current rows, kPageTokens]
  // Holds the largest weight of each row, [current rows]; 0 if the row sees nothing.
  std::vector<float> bounds_;
  std::vector<ByteQuery> weights_;   // [current rows]
  std::vector<RowFactors> factors_;  // [current rows]
};

}  // namespace kvant::cpu
