// What it costs llama.cpp to check a grammar and to begin with its rules.
#pragma once

#include "model/grammar_rules.h"

namespace kvant {

// Errors: rules that begin with themselves (which llama.cpp sees only in part, and then doesn't stop), begin
// in too many ways (which it follows one by one), or have alternatives twice (by which its work doubles with
// each character).
Status check_bounds(const GrammarTable& grammar);

}  // namespace kvant
