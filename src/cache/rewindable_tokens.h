// Speculative decoding may run ahead by this many tokens, because truncation undoes them exactly and cheaply.
#pragma once

#include "cache/cache.h"

namespace kvant {

// Max tokens that one step may decode of a sequence such that Cache::truncate() to any length behind the
// first of them leaves it as if the others had never been there: as many as neither end a page, at which
// pages are sealed and scores are counted, nor let a sliding window free one. 1: none can be taken back, as
// in a model with recurrent states.
int rewindable_tokens(const Cache& cache, SequenceId sequence);

}  // namespace kvant
