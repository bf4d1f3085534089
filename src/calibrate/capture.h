// Capture holds Q, K and V that a model computed from calibration text, in bounded memory.
//
// The capture draws tokens of the samples at random and keeps K and V of these tokens for every head. Further
// samples, called passages, are kept whole, with their queries. The transform `oscar` learns from passages,
// and results are evaluated on passages. Longer samples, called contexts, serve training on attention itself.
// The capture keeps K of a context, and some of its queries.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"

namespace kvant {

// Attention may use this many tokens at the start of a sample as sinks. Recipes with a sink learn without
// these tokens.
inline constexpr int kSinkTokens = 4;

struct CaptureSize {
  int samples = 0;   // samples for training
  int length = 0;    // tokens of each sample and passage
  int rows = 0;      // at most this many tokens of all samples together are kept
  int passages = 0;  // samples that are kept whole
  int contexts = 0;
  int context_length = 0;  // tokens of each context
  // In each context, the queries of this many tokens are kept. The tokens are drawn from [first_query,
  // context_length), uniformly in the logarithm of their position, so every octave of lengths has equal
  // weight.
  int context_queries = 0;
  int first_query = 0;
  std::uint64_t seed = 0;
};

// Returns the bytes that a capture takes.
std::int64_t capture_bytes(const Geometry& geometry, const CaptureSize& size);
// Reduces contexts, then rows, then passages, until the capture takes at most `limit` bytes. A few of each
// always remain.
CaptureSize bounded(const Geometry& geometry, CaptureSize size, std::int64_t limit);

class Capture {
 public:
  Capture(const Geometry& geometry, const CaptureSize& size);

  const Geometry& geometry() const { return geometry_; }
  const CaptureSize& size() const { return size_; }
  int n_sequences() const { return size_.samples + size_.passages + size_.contexts; }
  int length(int sequence) const { return is_context(sequence) ? size_.context_length : size_.length; }

  // store() and store_query() fill the capture. Several threads may store values of different (layer, head)
  // at the same time.
  //
  // Stores K, V or a query [d] of token `token` of sequence `sequence`. Samples are the first sequences, then
  // come passages, then contexts. Tokens that the capture does not keep are ignored.
  void store(int sequence, int token, int layer, int kv_head, Side side, const float* values);
  void store_query(int sequence, int token, int layer, int head, const float* values);
  // Returns whether the capture keeps anything of the token.
  bool keeps(int sequence, int token) const { return kv_row(sequence, token) >= 0; }

  // Sets the offset of each sequence, which was added to the positions of its tokens after the first
  // kSinkTokens.
  void place(std::vector<int> offsets);

  // The functions from rows() to context_queries() read the capture.
  //
  // Returns K or V of the samples' kept tokens, [n, d]. without_sink leaves out the first kSinkTokens of each
  // sample.
  std::vector<float> rows(int layer, int kv_head, Side side, bool without_sink) const;
  // passage() returns K or V of passage p, and passage_queries() returns the queries of a query head,
  // [length, d].
  std::vector<float> passage(int p, int layer, int kv_head, Side side) const;
  std::vector<float> passage_queries(int p, int layer, int head) const;
  // Returns the position that the first token of passage p would have if it were not one of the first
  // kSinkTokens.
  int passage_position(int p) const { return offsets_.empty() ? 0 : offsets_[size_.samples + p]; }
  // context_keys() returns K of context c, [context_length, d]. context_query_tokens() returns the tokens
  // whose queries are kept, in ascending order, and context_queries() returns these queries,
  // [context_queries, d].
  std::vector<float> context_keys(int c, int layer, int kv_head) const;
  std::span<const std::int32_t> context_query_tokens(int c) const;
  std::vector<float> context_queries(int c, int layer, int head) const;

  // Calls visit(block) with every vector of values (bfloat16), in order to save or restore them.
  template <class Visit>
  void for_each_block(const Visit& visit) {
    for (auto* blocks : {&rows_, &passages_, &queries_, &context_keys_, &context_queries_})
      for (std::vector<std::uint16_t>& block : *blocks) visit(block);
  }

 private:
  using Block = std::vector<std::uint16_t>;
  std::size_t block(int layer, int kv_head, Side side) const {
    return std::size_t{2} * geometry_.head_index(layer, kv_head) + static_cast<int>(side);
  }
  bool is_passage(int sequence) const { return sequence >= size_.samples && !is_context(sequence); }
  bool is_context(int sequence) const { return sequence >= size_.samples + size_.passages; }
  // kv_row() and query_row() return the row of a token within the blocks of its kind of sequence, or -1 if
  // the token is not kept.
  int kv_row(int sequence, int token) const;
  int query_row(int sequence, int token) const;
  void choose_rows();
  void choose_queries();
  void draw_context_queries(std::mt19937_64& random);
  // Returns rows [first, first + n) of a block whose rows have d values.
  static std::vector<float> floats(const Block& values, std::size_t d, int first, int n);

  Geometry geometry_;
  CaptureSize size_;
  std::vector<int> offsets_;                // [n_sequences]; may be empty
  std::vector<std::int32_t> row_of_token_;  // [samples * length]; -1 if the token is not kept
  std::vector<std::int32_t> token_of_row_;  // [rows], the token's index in its sample
  std::vector<std::int32_t> query_tokens_;  // [contexts * context_queries]
  std::vector<Block> rows_;                 // [rows, d] for each layer, KV head and side
  std::vector<Block> passages_;             // [passages * length, d] for each layer, KV head and side
  std::vector<Block> queries_;              // [passages * length, d] for each layer and query head
  std::vector<Block> context_keys_;         // [contexts * context_length, d] for each layer and KV head
  std::vector<Block> context_queries_;      // [contexts * context_queries, d] for each layer and query head
};

}  // namespace kvant
