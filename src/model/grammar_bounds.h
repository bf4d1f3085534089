// Bounds the work that llama.cpp needs to check a grammar and to begin with its rules. A client can send any
// grammar. Without bounds, some grammars would take all memory or never return.
#pragma once

#include "model/grammar_rules.h"

namespace kvant {

// Returns an error for three kinds of rules. For rules that begin with themselves, llama.cpp may never stop,
// because it finds only some of them. llama.cpp follows every way in which a rule can begin, so there must
// not be too many. Duplicate alternatives would double its work with each character.
Status check_bounds(const GrammarTable& grammar);

}  // namespace kvant
