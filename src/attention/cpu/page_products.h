// Products of one query token's rows with the pages of one KV head, for any format: from the codes as
// integers where a page's order serves that (code_order.h), else from decoded rows.
#pragma once

#include <vector>

#include "attention/cpu/byte_kernels.h"
#include "base/matrix_view.h"
#include "cache/head_state.h"
#include "recipe/recipe.h"

namespace kvant::cpu {

// Whether whole pages of a format are multiplied as codes, or decoded first.
bool multiplies_codes(const Format& format, int head_dim);

// Buffers of one thread are part of it.
class PageProducts {
 public:
  explicit PageProducts(const ByteKernels& kernels) : kernels_(&kernels) {}

  // The queries of the pages to come: q [rows, d]; with integer products integers, and their scales.
  void begin(MatrixView<const float> q, const std::vector<float>& q_scale, Products products);

  // scores[r, t] = q_r . k_t for tokens [0, n_tokens) of the page.
  // next: the page that comes after it; null: none.
  void score(const PageSide& k, int n_tokens, const PageSide* next, MatrixView<float> scores);

  // out[r] += sum over t of weights[r, t] * v_t. Weights may be overwritten. V of 8 tokens in a row
  // whose weights are all 0 is not read.
  void mix(const PageSide& v, int n_tokens, const PageSide* next, MatrixView<float> weights,
           MatrixView<float> out);

  // Adds to `out` what mix() has left in the order of codes. After the last page of a run.
  void end(MatrixView<float> out);

 private:
  void clear_parameters();
  void clear_parameters_of_others(const Format& format);
  void scale_tokens(int n_tokens, MatrixView<float> values) const;
  CodePage code_page(const PageSide& side);
  bool needs_lookup(const CodePage& page) const;
  CodePage looked_up_page(const CodePage& page, int n_positions);
  const std::uint8_t* codebook_of(const CodePage& page);
  TokenParameters token_parameters(int group) const;
  void prepare_queries(const float* channel_scale);
  void sum_queries(int n_groups);
  void score_codes(const PageSide& k, MatrixView<float> scores);
  void score_group(const CodePage& page, int group, int first, int end, const float* offset,
                   MatrixView<float> scores);
  float query_scale(int r) const;
  void score_rows(const PageSide& k, int n_tokens, MatrixView<float> scores);
  void mix_codes(const PageSide& v, MatrixView<float> weights, MatrixView<float> out);
  void put_in_order(const float* scale, const CodePage& page);
  void add_channel_offsets(const float* offset, MatrixView<float> out) const;
  void mix_block(const CodePage& page, int first, int end, bool scales, MatrixView<float> weights,
                 MatrixView<float> out);
  void weigh_group(int group, int first, int end, MatrixView<float> weights, MatrixView<float> out);
  void mix_rows(const PageSide& v, int n_tokens, MatrixView<float> weights, MatrixView<float> out);
  Rows rows_of(const PageSide& side, int n_tokens);
  void keep_order(const CodeScheme& scheme, MatrixView<float> out);

  const ByteKernels* kernels_;
  MatrixView<const float> q_;
  const std::vector<float>* q_scale_ = nullptr;
  Products products_ = Products::real;

  NextBytes next_;     // taken by the first kernel
  CodeScheme scheme_;  // of the page at hand
  CodeParameters parameters_;
  const Format* parameters_of_ =
      nullptr;                        // the format that set them last: for every page it sets the same ones
  std::vector<ByteQuery> queries_;    // [rows]
  int prepared_channels_ = 0;         // the groups that queries_ are in the order of; 0: scaled for one page
  std::vector<float> query_sums_;     // [rows, token groups]
  int summed_groups_ = 0;             // of them; 0: nothing in them
  std::vector<std::int32_t> sums_;    // [rows, kPageTokens]
  std::vector<float> weight_sums_;    // [rows]: of a block's tokens
  std::vector<ByteWeights> weights_;  // [rows, token groups]
  std::vector<float> ordered_;        // [rows, d]: outputs, [group_channels][groups]
  int ordered_channels_ = 0;          // their group_channels; 0: nothing in them
  std::vector<float> ordered_scale_;  // [d]
  std::vector<float> rows_;           // [kPageTokens, d]: decoded
  std::vector<std::uint8_t> bytes_;   // [kPageTokens * d]: looked up
  std::vector<std::uint8_t> codebook_;  // [256][group_channels], of codebook_table_
  const std::uint8_t* codebook_table_ = nullptr;
  float block_scales_[kPageTokens / kIntegerBlock] = {};
};

}  // namespace kvant::cpu
