// Keeps the newest K and V of one KV head unquantized next to a cache, in a ring buffer of fixed size.
// QualityGuard compares these rows with the rows that the cache returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

class RecentRows {
 public:
  // Keeps at most `capacity` > 0 tokens of head_dim channels per side, as BF16.
  RecentRows(int capacity, int head_dim);

  // The stored tokens are [first, end).
  int first() const { return first_; }
  int end() const { return end_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(2 * sizeof(std::uint16_t) * k_.size()); }

  // Makes `token` the next token to add. Stored tokens from `token` on are forgotten. If tokens between end()
  // and `token` are missing, all stored tokens are forgotten.
  void go_to(int token);
  // Forgets all stored tokens. end() does not change.
  void forget() { first_ = end_; }
  // Adds the token end() with k and v, [head_dim] each. A full buffer forgets its oldest token.
  void add(const float* k, const float* v);
  // Reads K and V of the stored tokens [first, first + n) into k and v, [n, head_dim] each.
  void read(int first, int n, float* k, float* v) const;

 private:
  int capacity_, head_dim_;
  int first_ = 0, end_ = 0;
  std::vector<std::uint16_t> k_, v_;  // [capacity, head_dim]; token t is in row t % capacity
};

}  // namespace kvant
