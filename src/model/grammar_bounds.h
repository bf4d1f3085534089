// Bounds the cost for llama.cpp to check a grammar and to begin with its rules.
#pragma once

#include "model/grammar_rules.h"

namespace kvant {

// Refuses rules that begin with themselves (llama.cpp finds only some of these, and does not stop for
// others). Refuses rules that begin in too many ways (it follows each) or have duplicate alternatives (its
// work doubles with each character).
Status check_bounds(const GrammarTable& grammar);

}  // namespace kvant
