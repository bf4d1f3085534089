// Capture: Q, K and V that a model made of calibration text, in bounded memory.
//
// Of the training samples a random choice of tokens is kept, the same ones for all heads. Samples beyond
// these ("passages") are kept whole, with their queries: what was learned is judged on them, and what needs
// whole contexts is trained on them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"

namespace kvant {

// Tokens at the start of a sample that attention may turn into sinks: recipes with a sink learn without them.
inline constexpr int kSinkTokens = 4;

struct CaptureSize {
  int samples = 0;   // for training
  int length = 0;    // tokens of each sample and passage
  int rows = 0;      // tokens kept of all samples, at the most
  int passages = 0;  // kept whole
  std::uint64_t seed = 0;
};

class Capture {
 public:
  Capture(const Geometry& geometry, const CaptureSize& size);

  const Geometry& geometry() const { return geometry_; }
  const CaptureSize& size() const { return size_; }
  int n_sequences() const { return size_.samples + size_.passages; }
  std::int64_t bytes() const;

  // --- filling; threads may store different (layer, head)s at the same time ---
  // The row of token `token` of sequence `sequence` (the samples, then the passages), -1: not kept.
  int row_of(int sequence, int token) const;
  bool is_passage(int sequence) const { return sequence >= size_.samples; }
  // values: [d] of one token.
  void store(int sequence, int layer, int kv_head, Side side, int row, const float* values);
  void store_query(int layer, int head, int row, const float* values);

  // --- reading ---
  // The kept tokens of the samples' K or V, [n, d]; without_sink: but the first kSinkTokens of each sample.
  std::vector<float> rows(int layer, int kv_head, Side side, bool without_sink) const;
  // K or V of passage p, or the queries of query head `head`, all [length, d].
  std::vector<float> passage(int p, int layer, int kv_head, Side side) const;
  std::vector<float> passage_queries(int p, int layer, int head) const;

  // Calls visit(block) with every std::vector<std::uint16_t> of values (bfloat16): to save and restore.
  template <class Visit>
  void for_each_block(const Visit& visit) {
    for (auto* blocks : {&rows_, &passages_, &queries_})
      for (std::vector<std::uint16_t>& block : *blocks) visit(block);
  }

 private:
  using Block = std::vector<std::uint16_t>;
  std::size_t block(int layer, int kv_head, Side side) const {
    return (static_cast<std::size_t>(layer) * geometry_.n_kv_heads + kv_head) * 2 + static_cast<int>(side);
  }
  void choose_rows();
  std::vector<float> whole(const Block& values, int p) const;

  Geometry geometry_;
  CaptureSize size_;
  std::vector<std::int32_t> row_of_token_;  // [samples * length]: -1: not kept
  std::vector<std::int32_t> token_of_row_;  // [rows]: index in its sample
  std::vector<Block> rows_;                 // by layer, KV head, side: [rows, d]
  std::vector<Block> passages_;             // the same: [passages * length, d]
  std::vector<Block> queries_;              // by layer, query head: [passages * length, d]
};

}  // namespace kvant
