// How many pages the tokens of a batch of sequences lie in at most, while its steps add some to them.
#pragma once

#include <cstdint>

namespace kvant {

// Sequences that grow side by side: a step adds step_tokens at most to some of them, all together, and one to
// each of the others.
struct Batch {
  int n_seqs = 1;
  int step_tokens = 1;
};

// Of sequences that hold `held` tokens when a step begins, the first of a page among them, and what it adds,
// but n_tokens at most.
std::int64_t most_batch_pages(int n_tokens, std::int64_t held, const Batch& batch);

}  // namespace kvant
