// HeldPage: something that a sequence holds as a whole, shared with other sequences or not.
#pragma once

#include <compare>
#include <cstdint>

#include "cache/cache_bytes.h"

namespace kvant {

struct HeldPage {
  enum class Kind : std::uint8_t { sealed, tail, beside };  // tail: what is encoded ahead, too
  // It tells the page from the others of its store.
  struct Name {
    int owner = 0;  // a head or a layer group; -1: all layers
    Kind kind = Kind::sealed;
    int room = 0, id = 0;
    auto operator<=>(const Name&) const = default;
  };
  Name name;
  int page = -1;  // the 128 tokens from page * 128 on; -1: others
  bool shared = false;
  std::int64_t bytes = 0;
  std::int64_t CacheBytes::*part = nullptr;  // what the bytes count as
};

}  // namespace kvant
