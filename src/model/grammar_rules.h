// GrammarTable holds the rules of a grammar (llama.cpp's GBNF) as a table, with parentheses and repetitions
// written out as llama.cpp does it. Reading takes bounded time and memory, whatever the text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

// llama.cpp treats larger counts as no limit at all.
inline constexpr int kMaxGrammarRepetitions = 2000;

// Numbers from 0 on are rules; negative numbers are terminals, and equal terminals have the same number.
using GrammarSymbol = std::int32_t;
using GrammarSequence = std::vector<GrammarSymbol>;

// Says which characters or which token a terminal matches.
struct GrammarTerminal {
  enum class Kind : std::uint8_t { set, others, any, token, other_token };
  Kind kind = Kind::set;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;  // for characters, both ends included
  std::string token_text;                                       // for a token: [number], or its text
  std::int32_t token = -1;                                      // the token's number, when it is known
};

struct GrammarTable {
  int root = 0;                                     // number of the rule called root
  std::vector<GrammarTerminal> terminals;           // symbol ~i stands for terminal i
  std::vector<std::vector<GrammarSequence>> rules;  // alternatives of each rule
  std::vector<std::string> names;  // for each rule, the named rule that it is, or is a part of
};

// Errors: the text is not a grammar, its parentheses are nested too deeply, or it is too large when written
// out.
Result<GrammarTable> read_grammar(const std::string& gbnf);

}  // namespace kvant
