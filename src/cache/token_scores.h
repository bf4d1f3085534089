// TokenScores: how much attention each token of one (sequence, layer, KV head) has drawn (VQuant section 5),
// and the queries that are kept to observe it.
//
// At every page end the last kObservers queries are the observers, with their exact softmax over all keys so
// far. A token's score is the sum of the weights it got / the number of observers that could see it, heads of
// the group summed: F16 for each token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/token_mask.h"

namespace kvant {

inline constexpr int kObservers = 64;  // queries a page: the last ones

class TokenScores {
 public:
  // Room for n_tokens tokens and the observers of one page, group query heads of size head_dim: nothing below
  // allocates then.
  void reserve(int n_tokens, int group, int head_dim);

  // One observer: the query of `token` for the g-th head of the group, its softmax maximum and sum. Queries
  // of a page come in any order of g, tokens ascending. Others than the last kObservers of a page are
  // ignored.
  void observe(int token, int g, int group, std::span<const float> q, float max, float sum);

  // The observers so far of the page that is being filled: row i of q has the softmax maxima[i], sums[i] and
  // is of token tokens[i].
  MatrixView<const float> queries() const;
  std::span<const float> maxima() const { return max_; }
  std::span<const float> sums() const { return sum_; }
  std::span<const int> tokens() const { return token_; }

  // Ends the page that ends at `end`: weights[t] is the sum of token t's weights over the observers. [end].
  void end_page(int end, std::span<const double> weights);

  // The score of a token; 0 before the end of its page.
  float score(int token) const;
  int size() const { return static_cast<int>(scores_.size()); }  // tokens with a score

  // The tokens of page `page` to protect: those above the (1 - rho) quantile of the scores of all tokens up
  // to the end of that page, at most `room` of them, highest first; tokens before `sink` never.
  TokenMask select(int page, double rho, int room, int sink) const;

  void truncate(int n_tokens);
  std::int64_t bytes() const;  // scores, and observers where a page is open

 private:
  int head_dim_ = 0;
  std::vector<std::uint16_t> scores_;  // F16
  std::vector<float> q_, max_, sum_;   // observers
  std::vector<int> token_;
};

// Observers among all queries before `end` (a page end) that could see `token`.
int observers_of(int token, int end);

}  // namespace kvant
