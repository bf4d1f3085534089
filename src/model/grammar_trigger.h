// GrammarTrigger: from where on a grammar holds that is lazy (llama.cpp's rules for it).
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

class GrammarTrigger {
 public:
  // Without patterns and tokens the grammar holds from the start. An error: a pattern that is no regular
  // expression.
  static Result<GrammarTrigger> make(const std::vector<std::string>& patterns,
                                     std::vector<std::int32_t> tokens);

  bool is_awaited() const { return is_awaited_; }
  using Token = std::pair<std::int32_t, std::string>;  // its number and its text, or the end of it
  // The next token while it is awaited. What the grammar has to take, once it holds.
  std::vector<Token> add(std::int32_t token, const std::string& text);

 private:
  struct Pattern {
    std::regex regex;
    bool is_whole;  // it begins and ends where the text does
  };
  std::vector<Token> tokens_from(std::size_t start) const;

  std::vector<Pattern> patterns_;
  std::vector<std::int32_t> trigger_tokens_;
  bool is_awaited_ = false;
  std::string text_;
  std::vector<Token> tokens_;  // of the text
};

}  // namespace kvant
