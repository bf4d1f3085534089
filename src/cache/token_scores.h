// TokenScores holds how much attention each token of one (sequence, layer, KV head) has drawn (VQuant section
// 5), and Observers holds the queries that are kept to observe it.
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
  // Reserves memory for n_tokens tokens. end_page() then allocates nothing.
  void reserve(int n_tokens) { scores_.reserve(n_tokens); }

  // Ends the page that ends at `end`, whose observers are the tokens from first_observer on. weights[t],
  // [end], is the sum of token t's weights over the observers. There must be at least one observer.
  void end_page(int end, int first_observer, std::span<const double> weights);

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
  // ended page, that page ends again with fewer observers.
  void truncate(int n_tokens);
  static constexpr std::int64_t kTokenBytes = sizeof(std::uint16_t);  // bytes of a score
  // Write and read the interchange form of n scores.
  void save(ByteWriter& to) const { to.write_all(std::span<const std::uint16_t>(scores_)); }
  void load(ByteReader& from, int n) { scores_ = from.read_all<std::uint16_t>(n); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(scores_.size()) * kTokenBytes; }

 private:
  std::vector<std::uint16_t> scores_;  // F16
};

// Holds the observers so far of the page that is being filled.
class Observers {
 public:
  // Reserves memory for the observers of one page, `group` query heads of size head_dim. observe() then
  // allocates nothing.
  void reserve(int group, int head_dim);

  // Is one observer: the query of `token` for one head of the group, an offset of its scores, and its softmax
  // maximum and sum. Tokens come in ascending order, and the heads of a token in the order of the heads.
  // observe() ignores queries that are not among the last kObservers of a page.
  struct Observer {
    int token = 0;
    std::span<const float> q;  // [head_dim]
    float offset = 0, max = 0, sum = 0;
  };
  void observe(const Observer& observer, int group);

  // Row i of queries() belongs to tokens()[i]. offsets()[i] is added to its scores, and maxima()[i] and
  // sums()[i] are its softmax statistics.
  MatrixView<const float> queries() const { return {q_.data(), static_cast<int>(token_.size()), head_dim_}; }
  std::span<const float> offsets() const { return offset_; }
  std::span<const float> maxima() const { return max_; }
  std::span<const float> sums() const { return sum_; }
  std::span<const int> tokens() const { return token_; }

  void forget() { keep(0); }
  // Keeps the observers of the first n_tokens tokens. The observers of a page that had ended are gone.
  void truncate(int n_tokens);
  // Write and read the interchange form of n observers. load() refuses data that cannot belong to n_tokens
  // tokens and `group` query heads of size head_dim.
  void save(ByteWriter& to) const;
  void load(ByteReader& from, int n, int n_tokens, int group, int head_dim);
  static constexpr std::int64_t bytes_of(int head_dim) {  // bytes of one observer
    return static_cast<std::int64_t>((head_dim + 3) * sizeof(float) + sizeof(int));
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(token_.size()) * bytes_of(head_dim_); }

 private:
  void keep(std::size_t rows);

  int head_dim_ = 0;
  std::vector<float> q_, offset_, max_, sum_;  // one row or number for each observer
  std::vector<int> token_;
};

// Returns how many observers the next step may find for each query head in a sequence of n_tokens.
// Observers are tokens of the second half of the open page.
inline int open_observers(int n_tokens) {
  const int n = n_tokens % kPageTokens - (kPageTokens - kObservers);
  return n > 0 ? n : 0;
}

// Returns how many observers before `end` (a page end) could see `token`.
int observers_of(int token, int end);

}  // namespace kvant
