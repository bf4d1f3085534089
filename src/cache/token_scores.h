// TokenScores: how much attention each token of one (sequence, layer, KV head) has drawn (VQuant section 5),
// and the queries that are kept to observe it.
//
// At every page end the last kObservers queries are the observers, with their exact softmax over all keys so
// far. A token's score is the sum of the weights it got / the number of observers that could see it, heads of
// the group summed: F16 for each token, in units of 2^-8, in which the smallest are normal numbers at any
// context and a sum over 255 heads is finite.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/token_mask.h"
#include "cache/byte_stream.h"

namespace kvant {

inline constexpr int kObservers = 64;  // queries a page: the last ones

class TokenScores {
 public:
  // Room for n_tokens tokens and the observers of one page, group query heads of size head_dim: nothing below
  // allocates then.
  void reserve(int n_tokens, int group, int head_dim);

  // One observer: the query of `token` for the g-th head of the group, what is added to its scores, its
  // softmax maximum and sum. Tokens come in ascending order, each with its heads in theirs. Others than the
  // last kObservers of a page are ignored.
  struct Observer {
    int token = 0;
    std::span<const float> q;  // [head_dim]
    float offset = 0, max = 0, sum = 0;
  };
  void observe(const Observer& observer, int group);

  // The observers so far of the page that is being filled: row i of q is of token tokens[i], has offsets[i]
  // added to its scores, and the softmax maxima[i], sums[i].
  MatrixView<const float> queries() const;
  std::span<const float> offsets() const { return offset_; }
  std::span<const float> maxima() const { return max_; }
  std::span<const float> sums() const { return sum_; }
  std::span<const int> tokens() const { return token_; }

  // Ends the page that ends at `end`: weights[t] is the sum of token t's weights over the observers so far,
  // of which there is one at least, and which are forgotten. [end].
  void end_page(int end, std::span<const double> weights);
  // The same of observers that lie elsewhere: those of tokens from first_observer on.
  void end_page(int end, int first_observer, std::span<const double> weights);
  void forget_observers();

  // The score of a token; 0 before the end of its page.
  float score(int token) const;
  int size() const { return static_cast<int>(scores_.size()); }  // tokens with a score

  // The (1 - rho) quantile of the scores of tokens [0, end); 0 < end <= size().
  float quantile(double rho, int end) const;

  // The tokens of page `page` to protect: those above the (1 - rho) quantile of the scores of all tokens up
  // to the end of that page, at most `room` of them, highest first; tokens before `sink` never.
  TokenMask select(int page, double rho, int room, int sink) const;

  // Keeps tokens [0, n_tokens). Scores keep what observers of pages that had ended gave them; observers of
  // such a page are gone, and the page then ends with fewer.
  void truncate(int n_tokens);
  static constexpr std::int64_t kTokenBytes = sizeof(std::uint16_t);  // of a score
  static constexpr std::int64_t observer_bytes(int head_dim) {        // of one observer
    return static_cast<std::int64_t>((head_dim + 3) * sizeof(float) + sizeof(int));
  }
  // For interchange. load(): an object without scores or observers becomes what was saved; what can't
  // be of n_tokens tokens and so many query heads of size head_dim is refused.
  void save(ByteWriter& to) const;
  void load(ByteReader& from, int n_tokens, int group, int head_dim);
  std::int64_t bytes() const;           // of scores
  std::int64_t observer_bytes() const;  // of all observers

 private:
  int head_dim_ = 0;
  std::vector<std::uint16_t> scores_;          // F16
  std::vector<float> q_, offset_, max_, sum_;  // observers
  std::vector<int> token_;
};

// Observers among all queries before `end` (a page end) that could see `token`.
int observers_of(int token, int end);

}  // namespace kvant
