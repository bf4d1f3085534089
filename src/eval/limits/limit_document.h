// Makes texts that hide facts and records, with questions about them. evaluate_limits() asks these questions
// at growing lengths to find where a cache stops answering correctly.
#pragma once

#include <string>
#include <vector>

#include "eval/retrieval/document.h"

namespace kvant {

struct RecordQuestion {
  // The prompt holds the tokens from the end of the document to the point where the completion begins.
  Tokens prompt;
  // The prompt ends with the cue, which is the start of the right answer.
  std::string cue;
  // Holds the right answer including the cue.
  std::string json;
};

struct LimitDocument {
  // The document, its longest question and the answer to the longest question fill `context` tokens.
  int context = 0;
  Tokens tokens;
  std::vector<RetrievalQuestion> needles;
  std::vector<RecordQuestion> records;
  // The summary asks for a long answer.
  Tokens summary;
};

struct LimitOptions {
  // The contexts must be in ascending order.
  std::vector<int> contexts;
  // A long answer has at most this many tokens.
  int answer_tokens = 32;
  std::uint64_t seed = 1;
};

// A record may have at most kRecordTokens tokens.
inline constexpr int kRecordTokens = 64;

// Makes one document for each context with enough room for the facts and an answer. The documents use the
// model's chat template if the model has one. Returns an error if the text cannot serve as a haystack.
Result<std::vector<LimitDocument>> make_limit_documents(const Tokenizer& tokenizer, const std::string& text,
                                                        const LimitOptions& options);

}  // namespace kvant
