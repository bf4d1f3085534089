// LimitDocument: a text with facts and records in it and what is asked about them, to see up to which length
// of the text a cache answers.
#pragma once

#include <string>
#include <vector>

#include "eval/retrieval/document.h"

namespace kvant {

struct RecordQuestion {
  Tokens prompt;     // from the end of the document to where the answer goes on
  std::string cue;   // what the answer begins with, in the prompt already
  std::string json;  // the right answer, cue and all
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

// Tokens of a record, at most.
inline constexpr int kRecordTokens = 64;

// In the model's chat template, if it has one; one for each context that has room for the facts and an
// answer. An error where the text is no haystack.
Result<std::vector<LimitDocument>> make_limit_documents(const Tokenizer& tokenizer, const std::string& text,
                                                        const LimitOptions& options);

}  // namespace kvant
