// Orders of a page's code bytes: the format's own, or one that puts tokens into the lanes of vector registers
// (design section 3: a backend may permute a page's codes). Parameters stay where they are.
#pragma once

#include <memory>

#include "base/geometry.h"
#include "format/format.h"

namespace kvant {

// Each order places byte b of group g of token t (code_scheme.h), with G groups of B bytes per token:
enum class CodeOrder : std::uint8_t {
  rows,         // (t * G + g) * B + b: the canonical order
  token_lanes,  // (((t / 16 * G / 4 + g / 4) * B + b) * 16 + t % 16) * 4 + g % 4: for sums over channels (q .
                // K)
  token_octets  // ((t / 8 * B + b) * G + g) * 8 + t % 8: for sums over tokens (P . V)
};

// Tokens and groups that are adjacent in one load.
inline constexpr int kLaneTokens = 16;
inline constexpr int kLaneGroups = 4;
inline constexpr int kOctet = 8;

// Returns `format` with its codes in the order that suits a side: token_lanes for K, token_octets for V. The
// result is null if the codes of head_dim channels have no other order. That is so if a token's groups aren't
// a multiple of 4, if the format has no scheme, or if its codes are wide vectors, which are looked up one by
// one. The result refers to `format`.
std::unique_ptr<Format> with_code_order(const Format& format, Side side, int head_dim);

// Convert a whole page of any format to canonical code order, and back, for interchange. The two buffers must
// not overlap.
void to_canonical_order(const Format& format, int head_dim, const std::byte* page, std::byte* canonical);
void from_canonical_order(const Format& format, int head_dim, const std::byte* canonical, std::byte* page);

}  // namespace kvant
