// Splits a text into sentences and encodes each sentence as tokens. A document repeats the sentences as often
// as its context needs.
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
  // Sentences end at full stops, question marks, exclamation marks and line breaks. Long sentences are cut.
  // Returns an error if the text has no sentence or is not UTF-8.
  static Result<Haystack> from(const Tokenizer& tokenizer, const std::string& text);

  std::size_t size() const { return sentences_.size(); }
  // Returns sentences from number `first` on, cyclically, as many as fit into n_tokens.
  std::vector<Tokens> take(std::size_t first, int n_tokens) const;

 private:
  // Each sentence begins with a space.
  std::vector<Tokens> sentences_;
};

}  // namespace kvant
