// RetrievalDocument: a haystack, which is a text with needles (facts) in it, and its questions, as tokens.
#pragma once

#include <string>
#include <vector>

#include "eval/retrieval/chat_document.h"
#include "eval/retrieval/facts.h"
#include "eval/retrieval/haystack.h"

namespace kvant {

struct RetrievalQuestion {
  std::string task;
  double depth = -1;  // see FactQuestion
  Tokens prompt;      // from the end of the document to where the answer starts
  Tokens answer;
};

Result<RetrievalQuestion> encode_question(const ChatEncoder& encoder, const FactQuestion& asked);

struct RetrievalDocument {
  int context = 0;  // tokens that the document fills, with its longest question and answer
  int number = 0;   // among those of this context
  Tokens tokens;
  std::vector<RetrievalQuestion> questions;
};

struct RetrievalOptions {
  std::vector<int> contexts = {2048, 4096, 8192};
  int documents = 3;  // of each context; their pass keys are hidden at evenly spaced depths
  std::uint64_t seed = 1;
};

// Encodes them in the model's chat template, if it has one. Returns an error if a context is too small for
// the facts alone.
Result<std::vector<RetrievalDocument>> make_retrieval_documents(const Tokenizer& tokenizer,
                                                                const std::string& text,
                                                                const RetrievalOptions& options);
// Returns the number of tokens that one source runs for all of them.
std::int64_t tokens_to_run(const std::vector<RetrievalDocument>& documents);

}  // namespace kvant
