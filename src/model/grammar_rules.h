// Reads a grammar (llama.cpp's GBNF) into a table. As in llama.cpp, parentheses and repetitions are expanded
// into rules. Reading takes bounded time and memory, whatever the text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

// llama.cpp treats a larger count as no limit.
inline constexpr int kMaxGrammarRepetitions = 2000;

// A GrammarSymbol >= 0 is a rule. Negative symbols are terminals, and equal terminals have the same number.
using GrammarSymbol = std::int32_t;
using GrammarSequence = std::vector<GrammarSymbol>;

// GrammarTerminal says which characters, or which token, a terminal matches.
struct GrammarTerminal {
  enum class Kind : std::uint8_t { set, others, any, token, other_token };
  Kind kind = Kind::set;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;  // only for characters; both ends are included
  std::string token_text;                                       // only for a token: [number], or the token's
                                                                // text
  std::int32_t token = -1;                                      // the token's number, once it is known
};

struct GrammarTable {
  int root = 0;                                     // the number of the rule called root
  std::vector<GrammarTerminal> terminals;           // symbol ~i stands for terminal i
  std::vector<std::vector<GrammarSequence>> rules;  // the alternatives of each rule
  std::vector<std::string> names;  // the named rule that a rule is or belongs to, for each rule
};

// Returns an error if the text is not a grammar, has too deeply nested parentheses, or becomes too large when
// parentheses and repetitions are expanded.
Result<GrammarTable> read_grammar(const std::string& gbnf);

}  // namespace kvant
