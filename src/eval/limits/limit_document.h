// LimitDocument: a text with hidden facts and records, and questions about them. It measures up to which
// length of text a cache answers.
#pragma once

#include <string>
#include <vector>

#include "eval/retrieval/document.h"

namespace kvant {

struct RecordQuestion {
  Tokens prompt;     // from the end of the document to where the completion begins
  std::string cue;   // the start of the answer, which the prompt contains
  std::string json;  // the right answer, including the cue
};

struct LimitDocument {
  int context = 0;  // tokens that the document fills, with its longest question and answer
  Tokens tokens;
  std::vector<RetrievalQuestion> needles;
  std::vector<RecordQuestion> records;
  Tokens summary;  // the prompt for a long answer
};

struct LimitOptions {
  std::vector<int> contexts;  // ascending
  int answer_tokens = 32;     // of a long answer, at most
  std::uint64_t seed = 1;
};

// The maximum number of tokens in a record.
inline constexpr int kRecordTokens = 64;

// Makes one document for each context that has room for the facts and an answer, in the model's chat template
// if it has one. It is an error if the text is no haystack.
Result<std::vector<LimitDocument>> make_limit_documents(const Tokenizer& tokenizer, const std::string& text,
                                                        const LimitOptions& options);

}  // namespace kvant
