// ControlTokens finds the control tokens of a vocabulary, such as <|im_start|>, in a text. A tokenizer reads
// the text of a control token as one token only if the caller permits it.
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
  bool strips_left = false, strips_right = false;  // white space on that side of the token is removed
};

class ControlTokens {
 public:
  ControlTokens() = default;
  explicit ControlTokens(const llama_vocab* vocabulary);

  void add(const std::string& text, const ControlToken& token);

  // Match is the longest control token at a byte of a text. The length is 0 if there is none.
  struct Match {
    std::size_t length = 0;
    ControlToken token;
  };
  Match at(std::string_view text, std::size_t position) const;
  bool occur_in(std::string_view text) const;

 private:
  std::unordered_map<std::string, ControlToken> tokens_;
  // Holds, for each character, the lengths of the control tokens that begin with it, the longest first.
  std::unordered_map<char, std::vector<std::size_t>> lengths_;
};

}  // namespace kvant
