#include "cache/batch_pages.h"

#include <algorithm>

#include "cache/page_counts.h"

namespace kvant {

// Each has room for a token more. A sequence's next page then takes what is missing to its first token, and
// those behind it 128 each: so as many sequences as possible get one, unless it takes more than these.
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
