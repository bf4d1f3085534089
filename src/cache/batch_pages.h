// Bounds the number of pages that the tokens of a batch of sequences lie in while its steps add tokens. A
// device must know this bound before memory is promised to a batch.
#pragma once

#include <cstdint>

namespace kvant {

// Describes sequences that grow side by side. A step adds at most step_tokens tokens to some sequences, all
// together, and one token to each of the others.
struct Batch {
  int n_seqs = 1;
  int step_tokens = 1;
};

// Returns the maximum number of pages. Each sequence holds `held` tokens when a step begins, counted from the
// first token of a page, and at most n_tokens tokens after the step.
std::int64_t most_batch_pages(int n_tokens, std::int64_t held, const Batch& batch);

}  // namespace kvant
