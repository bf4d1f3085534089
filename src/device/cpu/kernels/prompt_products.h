// Attends with a tile of a prompt's queries in 8 bits (flashq.h). A page's K and V become bytes once for all
// rows of the tile. Codes that are trellis states are bytes already, with one scale per token.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cpu/kernels/byte_kernels.h"
#include "device/cpu/kernels/tile.h"
#include "format/code_scheme.h"
#include "format/page_view.h"

namespace kvant::cpu {

// An object contains the buffers of one thread, so each thread needs its own.
class PromptProducts {
 public:
  explicit PromptProducts(const ByteKernels& kernels);

  // Returns whether attend() supports the rules on this instruction set. The set must multiply bytes, the
  // softmax must be exact, and head_dim must be a multiple of kTileLanes.
  bool takes(const AttentionRules& rules) const;

  // Sets the queries for the pages that follow. Tile and rules must outlive the calls of attend().
  void begin(const QueryTile& tile, const AttentionRules& rules);

  // Adds the page to `partial`. The maxima of `partial` then refer to weights times the scales of V.
  void attend(const PageView& page, PartialAttention& partial);

 private:
  // Consecutive rows go through all steps of attend() while their scores are in the first-level cache.
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
  // Holds [rows of the tile, d / 4] words. With n = group_channels_, word block * n + i holds channels n * (4
  // * block + k) + i for k = 0 .. 3.
  std::vector<std::uint32_t> queries_;
  // The value is 0 if queries_ is not set.
  int group_channels_ = 0;
  std::vector<float> query_scales_;   // [rows of the tile]
  std::vector<float> values_;         // [kPageTokens, d], decoded K, later decoded V
  std::vector<std::uint32_t> words_;  // [kPageTokens, d / 4], bytes of K before the transposition
  std::vector<std::uint32_t> keys_;   // [d / 4, kPageTokens]
  std::vector<std::uint32_t> mixed_;  // [kPageTokens / 4, d], bytes of V
  // Cancels what the queries' bias of 128 adds to the sums, [kPageTokens].
  std::vector<std::int32_t> first_;
  std::vector<float> key_scales_, value_scales_;    // [kPageTokens]
  std::vector<float> log_scales_, inverse_scales_;  // [kPageTokens], of the scales of V
  std::vector<float> scores_;                       // [current rows, kPageTokens]
  std::vector<std::uint8_t> weights_;               // [current rows, kPageTokens]
  // Hold offsets [d] that are equal for all tokens of the page; empty means 0.
  std::vector<float> key_offsets_, value_offsets_;
  // Holds sums of weights in the units of partial.accumulator, [current rows].
  std::vector<float> sums_;
  // Holds the parameters of a page's codes.
  CodeParameters parameters_;
  std::vector<float> factors_;  // [current rows]
};

}  // namespace kvant::cpu
