// RetrievalEval: whether a model with a given cache still finds what a long text said.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/logit_metrics.h"
#include "eval/logit_source.h"
#include "eval/retrieval/document.h"

namespace kvant {

struct AnswerScore {
  double logp = 0;     // log-probability of the right answer, nats
  bool exact = false;  // whether greedy decoding gives it, token by token
};

// Asks after what the source has read; its text then ends with the answer's last token but one.
Result<AnswerScore> ask(LogitSource& source, const RetrievalQuestion& question, int n_vocab);

// The questions, in the order of the scores.
struct AskedQuestion {
  std::string task;
  int context = 0, document = 0;
  double depth = -1;
};

struct RetrievalRow {
  std::string name;
  std::string label;  // label of a suite's row; empty: none
  std::vector<AnswerScore> scores;
  double seconds = 0;
  PlanReport plan;
};

struct RetrievalResult {
  RetrievalOptions options;
  std::string text;  // fingerprint of the documents
  std::vector<AskedQuestion> questions;
  std::vector<RetrievalRow> rows;  // the reference comes first
};

// Each source reads each document once and answers each question from there. advance(n) reports n more tokens
// of one source; the sum is tokens_to_run() per source. Errors come from a source.
Result<RetrievalResult> evaluate_retrieval(const std::vector<RetrievalDocument>& documents, int n_vocab,
                                           std::span<const std::unique_ptr<LogitSource>> sources,
                                           const RetrievalOptions& options,
                                           const std::function<void(std::int64_t)>& advance);

// Figures of one recipe over a selection of the questions.
struct RetrievalFigures {
  int questions = 0;
  double exact = 0;       // share, 0 .. 1
  double logp = 0;        // mean
  double difference = 0;  // mean of logp - the reference's
  // The bootstrap 95 % interval of the difference, over documents, or over questions if there are fewer than
  // 8 documents.
  Interval interval;
};
using QuestionFilter = std::function<bool(const AskedQuestion&)>;
RetrievalFigures summarize(const RetrievalResult& result, const RetrievalRow& row,
                           const QuestionFilter& filter);

}  // namespace kvant
