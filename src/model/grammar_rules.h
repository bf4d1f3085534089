// GrammarTable: the rules of a grammar (llama.cpp's GBNF) as a table, with parentheses and repetitions
// written out the way llama.cpp does it. Reading takes bounded time and memory, whatever the text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

// Of llama.cpp, which takes larger counts for no limit at all.
inline constexpr int kMaxGrammarRepetitions = 2000;

// What one stands for: from 0 on, the rule of that number; below, a terminal (equal ones are the same
// number).
using GrammarSymbol = std::int32_t;
using GrammarSequence = std::vector<GrammarSymbol>;

struct GrammarTable {
  std::vector<std::vector<GrammarSequence>> rules;  // the alternatives of each
  std::vector<std::string> names;                   // of the rule in the text that each is, or is a part of
};

// Errors: the text is no grammar, its parentheses are nested too deeply, or it becomes too large when it is
// written out.
Result<GrammarTable> read_grammar(const std::string& gbnf);

}  // namespace kvant
