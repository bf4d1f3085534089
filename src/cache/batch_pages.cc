#include "cache/batch_pages.h"

#include <algorithm>

#include "cache/page_counts.h"

namespace kvant {

// Every sequence has pages for one more token than it holds. A sequence gets its first further page after
// to_next new tokens, and each later page after 128 more tokens. If to_next is at most 128, the most pages
// arise if as many sequences as possible get a first further page. Otherwise a single sequence should get all
// further pages, because each later page takes fewer tokens than the first.
std::int64_t most_batch_pages(int n_tokens, std::int64_t held, const Batch& batch) {
  const std::int64_t most = pages_for(n_tokens), base = held / kPageTokens + 1;
  if (base >= most) return batch.n_seqs * most;
  const std::int64_t to_next = base * kPageTokens + 1 - held;
  const std::int64_t at_most = to_next <= kPageTokens ? batch.n_seqs : 1;
  const std::int64_t first = std::min(at_most, batch.step_tokens / to_next);
  const std::int64_t more = (batch.step_tokens - first * to_next) / kPageTokens;
  return std::min(batch.n_seqs * most, batch.n_seqs * base + first + more);
}

}  // namespace kvant
