// Bounds the work that llama.cpp needs to check a grammar and to begin with its rules. A client can send any
// grammar. Without bounds, some grammars would take all memory or never return.
#pragma once

#include "model/grammar_rules.h"

namespace kvant {

// Returns an error for three kinds of rules. First, llama.cpp may never stop on rules that begin with
// themselves, because it detects only some of these rules. Second, llama.cpp follows every way in which a
// rule can begin, so there must not be too many ways. Third, duplicate alternatives would double llama.cpp's
// work with each character.
Status check_bounds(const GrammarTable& grammar);

}  // namespace kvant
