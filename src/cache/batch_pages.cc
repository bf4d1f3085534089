#include "cache/batch_pages.h"

#include <algorithm>

#include "cache/page_counts.h"

namespace kvant {

// Every sequence has pages for one more token than it holds. The first further page of a sequence takes the
// tokens up to the first token of that page, and each page after it takes 128. So the most pages arise if as
// many sequences as possible get a further page. If a further page takes more than 128 tokens, only one
// sequence gets it.
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
