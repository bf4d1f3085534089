// Measures whether a model with a given cache still finds facts in a long text. A bootstrap interval shows
// whether the difference from the reference exceeds the noise.
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
  double logp = 0;  // log-probability of the right answer, nats
  // The flag is true if greedy decoding gives the right answer token by token.
  bool exact = false;
};

// Asks the question after the tokens that the source has read. The last token that the source reads is the
// answer's second to last token.
Result<AnswerScore> ask(LogitSource& source, const RetrievalQuestion& question, int n_vocab);

// Describes a question. The questions have the order of the scores.
struct AskedQuestion {
  std::string task;
  int context = 0, document = 0;
  double depth = -1;
};

struct RetrievalRow {
  std::string name;
  // Holds the label of a suite's row. The label is empty without a suite.
  std::string label;
  std::vector<AnswerScore> scores;
  double seconds = 0;
  PlanReport plan;
};

struct RetrievalResult {
  RetrievalOptions options;
  // Holds the fingerprint of the documents.
  std::string text;
  std::vector<AskedQuestion> questions;
  // The first row is the reference.
  std::vector<RetrievalRow> rows;
};

// Asks each source the questions about each document. Each source reads each document once, and every
// question starts from the end of the document. advance(n) is called after n more tokens of one source, and
// the sum of all n is tokens_to_run() for each source. Returns the error of a source that fails.
Result<RetrievalResult> evaluate_retrieval(const std::vector<RetrievalDocument>& documents, int n_vocab,
                                           std::span<const std::unique_ptr<LogitSource>> sources,
                                           const RetrievalOptions& options,
                                           const std::function<void(std::int64_t)>& advance);

// Holds the figures of one recipe over a selection of the questions.
struct RetrievalFigures {
  int questions = 0;
  double exact = 0;  // share of exact answers, 0 .. 1
  double logp = 0;   // mean log-probability, nats
  // `difference` is the mean difference of logp from the reference's logp, in nats.
  double difference = 0;
  // Holds the bootstrap 95 % interval of `difference`. The bootstrap resamples documents, or questions if
  // there are fewer than 8 documents.
  Interval interval;
};
using QuestionFilter = std::function<bool(const AskedQuestion&)>;
RetrievalFigures summarize(const RetrievalResult& result, const RetrievalRow& row,
                           const QuestionFilter& filter);

}  // namespace kvant
