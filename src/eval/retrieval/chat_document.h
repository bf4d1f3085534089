// A document with inserted sentences as the message of a chat, and the questions about it, as tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "eval/retrieval/haystack.h"

namespace kvant {

// Encodes the parts of a prompt one by one, so a document's tokens don't depend on the question. It uses the
// model's chat template, if there is one.
class ChatEncoder {
 public:
  explicit ChatEncoder(const Tokenizer& tokenizer);

  // Returns the tokens before the document; `introduction` is the message's first line.
  Result<Tokens> opening(const std::string& introduction) const;
  Tokens sentence(const std::string& text) const { return plain(" " + text); }
  // Returns the tokens from the end of the document to where the completion begins; the answer starts with
  // `cue`.
  Result<Tokens> prompt(const std::string& question, const std::string& cue) const;
  // Encodes the tests' own text, which is known to be UTF-8.
  Tokens plain(const std::string& text) const;

 private:
  const Tokenizer& tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;  // null: the model has none
  std::string before_, after_;                    // the chat template's text around a user's message
};

// A sentence at a position in the text, 0: start, 1: end.
struct PlacedSentence {
  double depth = 0;
  Tokens tokens;
};

// Joins `opening` and `sentences`, and inserts `placed` in order of depth, each after its share of the
// sentences.
Tokens interleave(Tokens opening, const std::vector<Tokens>& sentences, std::vector<PlacedSentence> placed);

}  // namespace kvant
