// Multiplies the rows of one query token with the pages of one KV head, for any format. Codes are multiplied
// as integers if their order allows (code_order.h); other pages are decoded first.
#pragma once

#include <vector>

#include "base/arithmetic.h"
#include "base/matrix_view.h"
#include "device/cpu/kernels/byte_kernels.h"
#include "format/page_view.h"

namespace kvant::cpu {

// Returns whether whole pages of a format are multiplied as codes and not decoded.
bool multiplies_codes(const Format& format, int head_dim);

// Rounding to small numbers may add this share to the squared error of the codes.
inline constexpr float kRoundingShare = 0.025F;

// Returns the share of the sum of squares that errors of small numbers may have, or 0 if codes of this scheme
// take no small numbers.
float small_share(const CodeScheme& scheme);

// An object contains the buffers of one thread, so each thread needs its own.
class PageProducts {
 public:
  explicit PageProducts(const ByteKernels& kernels) : kernels_(&kernels) {}

  // Sets the queries for the pages that follow: q is [rows, d]. With integer products, q holds integers and
  // q_scale their scales.
  void begin(MatrixView<const float> q, const std::vector<float>& q_scale, Products products);

  // Sets scores[r, t] = q_r . k_t for tokens [0, n_tokens) of the page. `next` is the page that will follow,
  // or null.
  void score(const PageSide& k, int n_tokens, const PageSide* next, MatrixView<float> scores);

  // Adds the sum over t of weights[r, t] * v_t to out[r]. Weights may be overwritten. If all weights of 8
  // neighbouring tokens are 0, their V is not read.
  void mix(const PageSide& v, int n_tokens, const PageSide* next, MatrixView<float> weights,
           MatrixView<float> out);

  // Adds outputs to `out` that mix() has kept in the order of the codes. Call it after the last page of a
  // run.
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

  // Takes from next_ what prefetch_part() will prefetch in n_parts parts.
  void divide_next(int n_parts);
  void prefetch_part();

  // The first kernel prefetches the bytes of next_.
  NextBytes next_;
  NextBytes rest_;  // bytes of the next page that follow those of next_
  std::ptrdiff_t part_size_ = 0;
  CodeScheme scheme_;  // scheme of the current page
  CodeParameters parameters_;
  // Points to the format that set parameters_ last. A format sets the same vectors of parameters_ for every
  // page.
  const Format* parameters_of_ = nullptr;
  std::vector<ByteQuery> queries_;  // [rows]
  // Give the group_channels and the small_share for which queries_ are packed. The channels are 0 if queries_
  // contain the scales of one page.
  int prepared_channels_ = 0;
  float prepared_share_ = 0;
  std::vector<float> query_sums_;  // [rows, token groups]
  // Gives the token groups of query_sums_; 0 if query_sums_ is not set.
  int summed_groups_ = 0;
  std::vector<std::int32_t> sums_;                // [rows, kPageTokens]
  std::vector<float> weight_sums_;                // [rows], over the tokens of a block
  std::vector<ByteWeights> weights_;              // [rows, token groups]
  std::vector<WeightRounding> weight_roundings_;  // [rows], over the pages of a run
  std::vector<float> ordered_;                    // [rows, d], outputs as [group_channels][groups]
  // Gives the group_channels of ordered_; 0 if ordered_ holds nothing.
  int ordered_channels_ = 0;
  std::vector<float> ordered_scale_;    // [d]
  std::vector<float> rows_;             // [kPageTokens, d], decoded rows
  std::vector<std::uint8_t> bytes_;     // [kPageTokens * d], looked-up bytes
  std::vector<std::uint8_t> codebook_;  // [256][max(group_channels, 4)], made from codebook_table_
  const std::uint8_t* codebook_table_ = nullptr;
  float block_scales_[kPageTokens / kIntegerBlock] = {};
};

}  // namespace kvant::cpu
