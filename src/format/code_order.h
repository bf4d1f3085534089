// CodeOrder is the order in which a page stores the bytes of its codes. The canonical order is the format's
// own. A backend may choose an order whose adjacent bytes fill the lanes of a vector register. Only codes
// move, and the page's parameters stay where the format puts them.
#pragma once

#include <memory>

#include "base/geometry.h"
#include "format/format.h"

namespace kvant {

// Each enumerator gives the offset of byte b of group g of token t. A token has G groups of B bytes
// (code_scheme.h).
enum class CodeOrder : std::uint8_t {
  rows,         // (t * G + g) * B + b, the canonical order
  token_lanes,  // (((t / 16 * G / 4 + g / 4) * B + b) * 16 + t % 16) * 4 + g % 4, for q . K
  token_octets  // ((t / 8 * B + b) * G + g) * 8 + t % 8, for P . V
};

// In token_lanes, kLaneTokens tokens of kLaneGroups groups are adjacent, and one load brings them together.
// In token_octets, kOctet tokens are adjacent.
inline constexpr int kLaneTokens = 16;
inline constexpr int kLaneGroups = 4;
inline constexpr int kOctet = 8;

// Returns `format` with its codes in the order that suits a side: token_lanes for K, token_octets for V. The
// result refers to `format`. The result is null for formats that have only the canonical order. Formats
// without a code scheme have no other order. Wide vectors have no other order, either, because each vector
// needs a separate look-up. The same holds if the number of groups of codes per token parameter is not a
// multiple of 4.
std::unique_ptr<Format> with_code_order(const Format& format, Side side, int head_dim);

// to_canonical_order() and from_canonical_order() convert a whole page of any format to the canonical order
// and back, because backends exchange pages in that order. The two buffers must not overlap.
void to_canonical_order(const Format& format, int head_dim, const std::byte* page, std::byte* canonical);
void from_canonical_order(const Format& format, int head_dim, const std::byte* canonical, std::byte* page);

}  // namespace kvant
