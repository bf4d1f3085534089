#include "cache/rewindable_tokens.h"

#include <algorithm>

#include "cache/page_counts.h"

namespace kvant {

int rewindable_tokens(const Cache& cache, SequenceId sequence) {
  const Geometry& g = cache.plan().geometry;
  if (g.is_recurrent()) return 1;
  const int length = cache.length(sequence);
  int most = kPageTokens - 1 - length % kPageTokens;
  for (const int window : g.sliding_window) {
    if (window == 0) continue;
    // Truncation cannot bring back freed pages, and the first visible token decides which pages are freed.
    const int first_page = first_visible_token(length + 1, window) / kPageTokens;
    most = std::min(most, (first_page + 1) * kPageTokens - 2 + window - length);
  }
  return std::max(most, 1);
}

}  // namespace kvant
