// The control tokens of a vocabulary, such as <|im_start|>. A tokenizer reads their texts as these tokens
// when it is told to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

struct llama_vocab;

namespace kvant {

struct ControlToken {
  std::int32_t id = 0;
  bool strips_left = false, strips_right = false;  // white space on that side is removed
};

class ControlTokens {
 public:
  ControlTokens() = default;
  explicit ControlTokens(const llama_vocab* vocabulary);

  void add(const std::string& text, const ControlToken& token);

  // The longest control token at this byte of the text; its length is 0 if there is none.
  struct Match {
    std::size_t length = 0;
    ControlToken token;
  };
  Match at(std::string_view text, std::size_t position) const;
  bool occur_in(std::string_view text) const;

 private:
  std::unordered_map<std::string, ControlToken> tokens_;
  // lengths of the tokens that begin with this character, longest first
  std::unordered_map<char, std::vector<std::size_t>> lengths_;
};

}  // namespace kvant
