// SequenceView: what a sequence of the cache holds, by page and by head: for people who look on.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache.h"

namespace kvant {

// Consecutive pages of 128 tokens that are held alike.
struct PageRun {
  enum class Kind : std::uint8_t {
    sealed,
    tail,   // unsealed: the open page, and those that the window keeps; maybe encoded ahead
    freed,  // by sliding windows, or by eviction, in all layers and heads
  } kind = Kind::sealed;
  bool shared = false;  // other sequences hold them as well: they are stored once
  int n_pages = 0;
};
const char* page_kind_name(PageRun::Kind kind);  // "sealed"

struct SequenceView {
  int n_tokens = 0;
  CacheBytes bytes;  // shared pages count fully
  // Bytes of pages by KV head, layer by layer (Geometry::head_index): sealed, of the tail and of protected
  // tokens. What belongs to both sides (lists, scores, a correction) is in neither.
  std::vector<std::int64_t> k_bytes, v_bytes;
  std::vector<PageRun> pages;  // in the order of tokens
};

// Of a sequence that the cache holds, between steps. Takes a time proportional to its pages in all heads.
SequenceView view_sequence(const Cache& cache, SequenceId sequence);

}  // namespace kvant
