// Haystack: the sentences of a text as tokens, repeated as often as a context needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

class Tokenizer;

using Tokens = std::vector<std::int32_t>;

class Haystack {
 public:
  // Sentences end at full stops, question and exclamation marks, and at line breaks; long ones are cut.
  // Returns an error if the text has no sentence or is not UTF-8.
  static Result<Haystack> from(const Tokenizer& tokenizer, const std::string& text);

  std::size_t size() const { return sentences_.size(); }
  // Returns sentences from number `first` on, cyclically, as many as n_tokens hold.
  std::vector<Tokens> take(std::size_t first, int n_tokens) const;

 private:
  std::vector<Tokens> sentences_;  // each begins with a space
};

}  // namespace kvant
