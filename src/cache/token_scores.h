// TokenScores holds how much attention each token of one (sequence, layer, KV head) has drawn (VQuant section
// 5). ObserverRows holds the queries that are kept to observe this attention.
//
// At every page end the last kObservers queries are the observers, with their exact softmax over all keys so
// far. A token's score sums its weights over all observers and heads of the group. The sum is divided by the
// number of observers that could see the token. Scores are F16 in units of 2^-8. In this unit the smallest
// scores are normal numbers at any context, and a sum over 255 heads is finite.
#pragma once

#include <algorithm>
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

// Returns the index of a token among the observers of its page. Other tokens have negative indices.
inline int observer_row(int token) {
  return token % kPageTokens - (kPageTokens - kObservers);
}

// Holds observers of one KV head, in rows for the second half of a page. Row observer_row(token) * group + g
// belongs to a token and to query head g of the group.
struct ObserverRows {
  std::vector<float> q;       // [kObservers * group, head_dim], with the softmax scale
  std::vector<float> offset;  // An offset is added to all scores of a row.
  std::vector<float> lse;     // the LSE of a row's scores

  void resize(int group, int head_dim) {
    const std::size_t rows = static_cast<std::size_t>(kObservers) * group;
    q.resize(rows * head_dim);
    offset.resize(rows);
    lse.resize(rows);
  }
  static constexpr std::int64_t bytes_of(int head_dim) {  // bytes of one row
    return static_cast<std::int64_t>((head_dim + 2) * sizeof(float));
  }
};

// Returns the first query that observes when the page that ends at page_end ends. The step appends tokens
// from `first` on, and the sequence had observers from first_observer on; -1 means none.
inline int first_observer_of(int page_end, int first, int first_observer) {
  return std::max(page_end - kObservers, first_observer >= 0 ? first_observer : first);
}

// Returns how many observers the next step may find for each query head in a sequence of n_tokens.
// Observers are tokens of the second half of the open page.
inline int open_observers(int n_tokens) {
  const int n = n_tokens % kPageTokens - (kPageTokens - kObservers);
  return n > 0 ? n : 0;
}

// Returns how many observers before `end` (a page end) could see `token`.
int observers_of(int token, int end);

}  // namespace kvant
