// Encodes a document and the questions about the document as the tokens of a chat. The document contains
// inserted sentences, and the questions ask for these sentences.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "eval/retrieval/haystack.h"

namespace kvant {

// Encodes the parts of a prompt separately, so the document's tokens do not depend on the question. The parts
// follow the model's chat template if the model has one.
class ChatEncoder {
 public:
  explicit ChatEncoder(const Tokenizer& tokenizer);

  // Returns the tokens before the document. `introduction` is the first line of the message.
  Result<Tokens> opening(const std::string& introduction) const;
  Tokens sentence(const std::string& text) const { return plain(" " + text); }
  // Returns the tokens from the end of the document to the point where the completion begins. The answer
  // starts with `cue`.
  Result<Tokens> prompt(const std::string& question, const std::string& cue) const;
  // Encodes text that the evaluation itself wrote, which is always UTF-8.
  Tokens plain(const std::string& text) const;

 private:
  const Tokenizer& tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;  // null if the model has no template
  // before_ and after_ hold the chat template's text before and after a user's message.
  std::string before_, after_;
};

// Describes a sentence and its place in the text. Depth 0 is the start, and depth 1 is the end.
struct PlacedSentence {
  double depth = 0;
  Tokens tokens;
};

// Joins `opening` and `sentences`, and inserts the placed sentences. The depth of a placed sentence is the
// share of `sentences` that precede it.
Tokens interleave(Tokens opening, const std::vector<Tokens>& sentences, std::vector<PlacedSentence> placed);

}  // namespace kvant
