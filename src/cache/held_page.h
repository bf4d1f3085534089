// HeldPage describes something that a sequence holds as a whole, alone or with other sequences.
#pragma once

#include <compare>
#include <cstdint>

#include "cache/cache_bytes.h"

namespace kvant {

struct HeldPage {
  // `tail` includes pages that are encoded ahead. `auxiliary` is everything except pages of tokens.
  enum class Kind : std::uint8_t { sealed, tail, auxiliary };
  // Identifies the page among all pages of its store.
  struct Name {
    int owner = 0;  // a layer group; -1 for all groups
    Kind kind = Kind::sealed;
    int room = 0, id = 0;
    const void* object = nullptr;  // Names what lies in no entry.
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy takes the comparison's zero for a pointer.
    auto operator<=>(const Name&) const = default;
  };
  Name name;
  int page = -1;  // The 128 tokens from page * 128 on, or -1 for other data.
  bool shared = false;
  std::int64_t bytes = 0;
  std::int64_t CacheBytes::*part = nullptr;  // What the bytes count as.
};

}  // namespace kvant
