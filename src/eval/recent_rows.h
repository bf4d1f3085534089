// RecentRows: the newest K and V of one KV head, unquantized, beside a cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

class RecentRows {
 public:
  // Keeps at most `capacity` > 0 tokens of head_dim channels a side, as bf16.
  RecentRows(int capacity, int head_dim);

  int first() const { return first_; }  // the tokens that are there: [first, end)
  int end() const { return end_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(2 * sizeof(std::uint16_t) * k_.size()); }

  // Makes `token` the next one: tokens from there on are forgotten, and all where those before it are
  // missing.
  void go_to(int token);
  // Forgets all tokens before end().
  void forget() { first_ = end_; }
  // Adds the token end(); k, v: [head_dim]. The oldest one is forgotten when there is no room.
  void add(const float* k, const float* v);
  // K and V of tokens [first, first + n), which are there, [n, head_dim] each.
  void read(int first, int n, float* k, float* v) const;

 private:
  int capacity_, head_dim_;
  int first_ = 0, end_ = 0;
  std::vector<std::uint16_t> k_, v_;  // [capacity, head_dim]: token t in row t % capacity
};

}  // namespace kvant
