// SequenceView describes what a sequence of the cache holds, by page and by head. The server and the command
// line show this to people.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache.h"

namespace kvant {

// Describes consecutive pages of 128 tokens that are held alike.
struct PageRun {
  enum class Kind : std::uint8_t {
    sealed,
    tail,   // Unsealed: the open page, and the pages that the window keeps. Such a page may be encoded ahead.
    freed,  // Freed by sliding windows or by eviction, in all layers and heads.
  } kind = Kind::sealed;
  bool shared = false;  // Other sequences hold the pages as well, and the pages are stored once.
  int n_pages = 0;
};
const char* page_kind_name(PageRun::Kind kind);  // for example "sealed"

struct SequenceView {
  int n_tokens = 0;
  CacheBytes bytes;  // Shared pages count fully.
  // Holds the bytes of pages by KV head, layer by layer (Geometry::head_index). Sealed pages, tail pages and
  // protected tokens count. Data of both sides (lists, scores, a correction) count in neither.
  std::vector<std::int64_t> k_bytes, v_bytes;
  std::vector<PageRun> pages;  // in the order of tokens
};

// Describes a sequence that the cache holds, between steps. The time is proportional to the number of its
// pages in all heads.
SequenceView view_sequence(const Cache& cache, SequenceId sequence);

}  // namespace kvant
