// Says by how many tokens speculative decoding may run ahead, because truncation undoes that many tokens
// exactly and cheaply.
#pragma once

#include "cache/cache.h"

namespace kvant {

// Returns the maximum number of tokens that one step may decode if Cache::truncate() has to undo them
// exactly. Truncation to any length from the first of them on leaves the sequence as if the other tokens had
// never been there. Pages are sealed and scores counted at a page end, so the tokens must not end a page. The
// tokens also must not free a page of a sliding window. 1 means that no token can be undone, as in a model
// with recurrent states.
int rewindable_tokens(const Cache& cache, SequenceId sequence);

}  // namespace kvant
