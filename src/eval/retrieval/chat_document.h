// A document with sentences put into it as the message of a chat, and what is asked about it, as tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "eval/retrieval/haystack.h"

namespace kvant {

// Parts of a prompt are encoded one by one, so that a document's tokens don't depend on the question. In the
// model's chat template, if it has one.
class ChatEncoder {
 public:
  explicit ChatEncoder(const Tokenizer& tokenizer);

  // What comes before the document; `introduction` is the message's first line.
  Result<Tokens> opening(const std::string& introduction) const;
  Tokens sentence(const std::string& text) const { return plain(" " + text); }
  // From the end of the document to where the answer goes on: the answer begins with `cue`.
  Result<Tokens> prompt(const std::string& question, const std::string& cue) const;
  // Text of the tests' own, which is UTF-8.
  Tokens plain(const std::string& text) const;

 private:
  const Tokenizer& tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;  // null: the model has none
  std::string before_, after_;                    // what the chat template puts around a user's message
};

// A sentence at a place in the text, 0: its start, 1: its end.
struct PlacedSentence {
  double depth = 0;
  Tokens tokens;
};

// `opening`, then `placed`, in order of depth, among `sentences`, each after its share of them.
Tokens interleave(Tokens opening, const std::vector<Tokens>& sentences, std::vector<PlacedSentence> placed);

}  // namespace kvant
