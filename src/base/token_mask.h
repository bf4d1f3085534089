// TokenMask is a set of tokens of one page, such as the protected tokens, with one bit per token.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/geometry.h"

namespace kvant {

struct TokenMask {
  std::array<std::uint64_t, kPageTokens / 64> words{};

  bool test(int token) const { return (words[token / 64] >> (token % 64)) & 1; }
  void set(int token) { words[token / 64] |= std::uint64_t{1} << (token % 64); }
  int count() const {
    int n = 0;
    for (std::uint64_t w : words) n += std::popcount(w);
    return n;
  }
  bool empty() const {
    std::uint64_t any = 0;
    for (std::uint64_t w : words) any |= w;
    return any == 0;
  }
  bool operator==(const TokenMask&) const = default;
};

}  // namespace kvant
