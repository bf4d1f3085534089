// RetrievalEval: whether caches still let a model find what a long text said.
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
  bool exact = false;  // greedy decoding would give it, token by token
};

// Asks behind what the source has read; its text goes on to the answer's last token but one.
Result<AnswerScore> ask(LogitSource& source, const RetrievalQuestion& question, int n_vocab);

// What was asked, in the order of the scores.
struct AskedQuestion {
  std::string task;
  int context = 0, document = 0;
  double depth = -1;
};

struct RetrievalRow {
  std::string name;
  std::string label;  // of a suite's row; empty: none
  std::vector<AnswerScore> scores;
  double seconds = 0;
  PlanReport plan;
};

struct RetrievalResult {
  RetrievalOptions options;
  std::string text;  // fingerprint of the documents
  std::vector<AskedQuestion> questions;
  std::vector<RetrievalRow> rows;  // the reference first
};

// Each source reads each document once, and answers each question from there. advance(n): n more tokens of
// one source; the sum is tokens_to_run() for each. An error from a source.
Result<RetrievalResult> evaluate_retrieval(const std::vector<RetrievalDocument>& documents, int n_vocab,
                                           std::span<const std::unique_ptr<LogitSource>> sources,
                                           const RetrievalOptions& options,
                                           const std::function<void(std::int64_t)>& advance);

// Figures of one recipe over some of the questions.
struct RetrievalFigures {
  int questions = 0;
  double exact = 0;       // share, 0 .. 1
  double logp = 0;        // mean
  double difference = 0;  // mean of logp - the reference's
  Interval interval;      // of the difference: bootstrap 95 % over documents, or over questions when
                          // there are less than 8 documents
};
using QuestionFilter = std::function<bool(const AskedQuestion&)>;
RetrievalFigures summarize(const RetrievalResult& result, const RetrievalRow& row,
                           const QuestionFilter& filter);

}  // namespace kvant
