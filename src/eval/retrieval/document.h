// Makes the documents of a needle-in-a-haystack test. A document is a text with inserted facts (needles),
// followed by questions about the facts, all as tokens.
#pragma once

#include <string>
#include <vector>

#include "eval/retrieval/chat_document.h"
#include "eval/retrieval/facts.h"
#include "eval/retrieval/haystack.h"

namespace kvant {

struct RetrievalQuestion {
  std::string task;
  // FactQuestion explains the depth.
  double depth = -1;
  // Holds the tokens from the end of the document to the point where the answer starts.
  Tokens prompt;
  Tokens answer;
};

Result<RetrievalQuestion> encode_question(const ChatEncoder& encoder, const FactQuestion& asked);

struct RetrievalDocument {
  // The document, its longest question and the answer to the longest question fill `context` tokens.
  int context = 0;
  // The documents of one context are numbered from 0.
  int number = 0;
  Tokens tokens;
  std::vector<RetrievalQuestion> questions;
};

struct RetrievalOptions {
  std::vector<int> contexts = {2048, 4096, 8192};
  // Each context has `documents` documents, whose pass keys are hidden at evenly spaced depths.
  int documents = 3;
  std::uint64_t seed = 1;
};

// Makes options.documents documents for each context, in the model's chat template if the model has one.
// Returns an error if a context is too small for the facts and a question.
Result<std::vector<RetrievalDocument>> make_retrieval_documents(const Tokenizer& tokenizer,
                                                                const std::string& text,
                                                                const RetrievalOptions& options);
// Returns the number of tokens that one source runs for all documents.
std::int64_t tokens_to_run(const std::vector<RetrievalDocument>& documents);

}  // namespace kvant
