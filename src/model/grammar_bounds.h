// Bounds the ways in which a grammar's rules can begin. A client can send any grammar. The bounds refuse
// grammars that would take too much memory or time.
#pragma once

#include "model/grammar_rules.h"

namespace kvant {

// Returns an error for three kinds of rules. First, rules that begin with themselves have endlessly many
// beginnings. Second, GrammarMatcher follows every way in which a rule can begin, so there must not be too
// many ways. Third, duplicate alternatives only multiply the readings of a text.
Status check_bounds(const GrammarTable& grammar);

}  // namespace kvant
