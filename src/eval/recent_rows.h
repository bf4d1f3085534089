// RecentRows: the newest K and V of one KV head, unquantized, kept next to a cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

class RecentRows {
 public:
  // Keeps at most `capacity` > 0 tokens of head_dim channels per side, as bf16.
  RecentRows(int capacity, int head_dim);

  int first() const { return first_; }  // the stored tokens are [first, end)
  int end() const { return end_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(2 * sizeof(std::uint16_t) * k_.size()); }

  // Makes `token` the next one. Tokens from there on are forgotten, and all tokens if those just before it
  // are missing.
  void go_to(int token);
  // Forgets all tokens before end().
  void forget() { first_ = end_; }
  // Adds the token end(); k, v: [head_dim]. The oldest token is forgotten if there is no room.
  void add(const float* k, const float* v);
  // Reads K and V of the stored tokens [first, first + n), [n, head_dim] each.
  void read(int first, int n, float* k, float* v) const;

 private:
  int capacity_, head_dim_;
  int first_ = 0, end_ = 0;
  std::vector<std::uint16_t> k_, v_;  // [capacity, head_dim]: token t in row t % capacity
};

}  // namespace kvant
