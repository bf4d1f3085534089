// TokenScores holds how much attention each token of one (sequence, layer, KV head) has drawn (VQuant section
// 5), and the queries that are kept to observe it.
//
// At every page end the last kObservers queries are the observers, with their exact softmax over all keys so
// far. A token's score sums its weights over all observers and heads of the group. The sum is divided by the
// number of observers that could see the token. Scores are F16 in units of 2^-8. In this unit the smallest
// scores are normal numbers at any context, and a sum over 255 heads is finite.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/token_mask.h"
#include "cache/byte_stream.h"

namespace kvant {

inline constexpr int kObservers = 64;  // The last queries of a page are its observers.

class TokenScores {
 public:
  // Reserves memory for n_tokens tokens and for the observers of one page, `group` query heads of size
  // head_dim. The functions below then allocate nothing.
  void reserve(int n_tokens, int group, int head_dim);

  // Is one observer: the query of `token` for one head of the group, an offset of its scores, and its softmax
  // maximum and sum. Tokens come in ascending order, and the heads of a token in the order of the heads.
  // observe() ignores queries that are not among the last kObservers of a page.
  struct Observer {
    int token = 0;
    std::span<const float> q;  // [head_dim]
    float offset = 0, max = 0, sum = 0;
  };
  void observe(const Observer& observer, int group);

  // Return the observers so far of the page that is being filled. Row i of queries() belongs to tokens()[i].
  // offsets()[i] is added to its scores, and maxima()[i] and sums()[i] are its softmax statistics.
  MatrixView<const float> queries() const;
  std::span<const float> offsets() const { return offset_; }
  std::span<const float> maxima() const { return max_; }
  std::span<const float> sums() const { return sum_; }
  std::span<const int> tokens() const { return token_; }

  // Ends the page that ends at `end` and forgets the observers. weights[t], [end], is the sum of token t's
  // weights over the observers so far. There must be at least one observer.
  void end_page(int end, std::span<const double> weights);
  // Ends a page whose observers lie elsewhere and are the tokens from first_observer on.
  void end_page(int end, int first_observer, std::span<const double> weights);
  void forget_observers();

  // Returns the score of a token, or 0 before the end of its page.
  float score(int token) const;
  int size() const { return static_cast<int>(scores_.size()); }  // tokens with a score

  // Returns the (1 - rho) quantile of the scores of tokens [0, end); 0 < end <= size().
  float quantile(double rho, int end) const;

  // Returns the tokens of page `page` to protect. The result has at most `room` tokens, the highest score
  // first. Their scores are above the (1 - rho) quantile of all scores up to the end of that page. Tokens
  // before `sink` are never selected.
  TokenMask select(int page, double rho, int room, int sink) const;

  // Keeps tokens [0, n_tokens). Scores keep what observers of ended pages gave them. If the cut is in an
  // ended page, the observers of that page are gone, and the page ends again with fewer observers.
  void truncate(int n_tokens);
  static constexpr std::int64_t kTokenBytes = sizeof(std::uint16_t);  // bytes of a score
  static constexpr std::int64_t observer_bytes(int head_dim) {        // bytes of one observer
    return static_cast<std::int64_t>((head_dim + 3) * sizeof(float) + sizeof(int));
  }
  // Write and read the interchange form. load() turns an object without scores or observers into what was
  // saved. load() refuses data that cannot belong to n_tokens tokens and `group` query heads of size
  // head_dim.
  void save(ByteWriter& to) const;
  void load(ByteReader& from, int n_tokens, int group, int head_dim);
  std::int64_t bytes() const;           // bytes of the scores
  std::int64_t observer_bytes() const;  // bytes of all observers

 private:
  int head_dim_ = 0;
  std::vector<std::uint16_t> scores_;          // F16
  std::vector<float> q_, offset_, max_, sum_;  // one row or number for each observer
  std::vector<int> token_;
};

// Returns how many observers before `end` (a page end) could see `token`.
int observers_of(int token, int end);

}  // namespace kvant
