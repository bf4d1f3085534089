// Attention of a tile of many queries to whole pages of codes, as integers: a page's codes are expanded to
// bytes once for all rows of the tile, which are multiplied in numbers of 16 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/cpu/byte_kernels.h"
#include "attention/tile.h"
#include "cache/head_state.h"

namespace kvant::cpu {

// Buffers of one thread are part of it.
class TileProducts {
 public:
  explicit TileProducts(const ByteKernels& kernels);

  // The queries of the pages to come, which must outlive them. All rules but `products` and `softmax`, which
  // must be real and exact, are obeyed.
  void begin(const QueryTile& tile, const AttentionRules& rules);

  // Whether attend() serves the page: its codes are numbers or states on both sides, which bytes hold
  // exactly.
  bool takes(const PageView& page) const;

  // Adds the page to `partial`.
  void attend(const PageView& page, PartialAttention& partial);

 private:
  // One side of the page at hand. Its bytes are `bias` more than the numbers that the parameters belong to.
  struct Operand {
    CodeScheme scheme;
    CodeParameters parameters;
    std::vector<std::uint8_t> bytes;
    int bias = 0;
    int blocks() const { return std::max(1, scheme.channel_blocks); }
    int groups() const { return std::max(1, scheme.token_groups); }
    TokenParameters tokens(int group) const;
  };
  // Consecutive rows that go through all of it while their scores are near.
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
  std::vector<ByteQuery> queries_;   // [rows of the tile]
  bool prepared_ = false;            // queries_ are those of pages without scales of channels
  std::vector<float> query_sums_;    // [rows of the tile, token groups of K]
  int summed_groups_ = 0;            // of them; 0: nothing in them
  std::vector<float> scores_;        // [rows at hand, kPageTokens]
  std::vector<float> bounds_;        // [rows at hand]: their largest weight; 0: nothing seen
  std::vector<ByteQuery> weights_;   // [rows at hand]
  std::vector<RowFactors> factors_;  // [rows at hand]
};

}  // namespace kvant::cpu
