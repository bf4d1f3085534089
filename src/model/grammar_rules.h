// GrammarTable: the rules of a grammar (llama.cpp's GBNF) as a table, with parentheses and repetitions
// written out the way llama.cpp does it. Reading takes bounded time and memory, whatever the text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

// Of llama.cpp, which takes larger counts for no limit at all.
inline constexpr int kMaxGrammarRepetitions = 2000;

// What one stands for: from 0 on, the rule of that number; below, a terminal (equal ones are the same
// number).
using GrammarSymbol = std::int32_t;
using GrammarSequence = std::vector<GrammarSymbol>;

// What a terminal stands for.
struct GrammarTerminal {
  enum class Kind : std::uint8_t { set, others, any, token, other_token };
  Kind kind = Kind::set;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;  // of characters, both ends included
  std::string token_text;                                       // of a token: [number], or the text of one
  std::int32_t token = -1;                                      // its number, once that is known
};

struct GrammarTable {
  int root = 0;                                     // the rule of that name
  std::vector<GrammarTerminal> terminals;           // that ~symbol stands for
  std::vector<std::vector<GrammarSequence>> rules;  // the alternatives of each
  std::vector<std::string> names;                   // of the rule in the text that each is, or is a part of
};

// Errors: the text is no grammar, its parentheses are nested too deeply, or it becomes too large when it is
// written out.
Result<GrammarTable> read_grammar(const std::string& gbnf);

}  // namespace kvant
