#include "eval/retrieval/retrieval_eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "eval/quality_eval.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

// With fewer documents, a bootstrap over documents gives too narrow an interval.
constexpr std::size_t kDocumentsToResample = 8;

double log_probability(const float* logits, int n_vocab, std::int32_t token) {
  const float largest = *std::max_element(logits, logits + n_vocab);
  double sum = 0;
  for (int i = 0; i < n_vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
  return static_cast<double>(logits[token]) - largest - std::log(sum);
}

Status read_and_answer(LogitSource& source, const RetrievalDocument& document, int n_vocab,
                       RetrievalRow& row) {
  const auto start = Clock::now();
  KVANT_RETURN_IF_ERROR(source.begin());
  KVANT_RETURN_IF_ERROR(source.step(document.tokens, /*is_prompt=*/true, {}));
  KVANT_RETURN_IF_ERROR(source.mark());
  for (const RetrievalQuestion& question : document.questions) {
    KVANT_RETURN_IF_ERROR(source.rewind());
    const auto score = ask(source, question, n_vocab);
    if (!score.ok()) return score.error();
    row.scores.push_back(*score);
  }
  // begin() empties the cache, so the next source has its memory.
  KVANT_RETURN_IF_ERROR(source.begin());
  row.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  return {};
}

}  // namespace

// The source reads the right answer token by token. Greedy decoding would give this answer if each of its
// tokens is the most likely token after the earlier tokens.
Result<AnswerScore> ask(LogitSource& source, const RetrievalQuestion& question, int n_vocab) {
  const int n = static_cast<int>(question.answer.size());
  std::vector<float> storage(static_cast<std::size_t>(n) * n_vocab);
  const MatrixView<float> logits(storage.data(), n, n_vocab);
  KVANT_RETURN_IF_ERROR(source.step(question.prompt, /*is_prompt=*/true, logits.slice(0, 1)));
  if (n > 1) {
    KVANT_RETURN_IF_ERROR(
        source.step(std::span(question.answer).first(n - 1), /*is_prompt=*/false, logits.slice(1, n - 1)));
  }
  AnswerScore score{0, true};
  for (int i = 0; i < n; ++i) {
    const float* row = logits.row(i);
    score.logp += log_probability(row, n_vocab, question.answer[i]);
    score.exact = score.exact && std::max_element(row, row + n_vocab) - row == question.answer[i];
  }
  if (std::isnan(score.logp)) return error("the logits are not numbers: the model file may be damaged");
  return score;
}

Result<RetrievalResult> evaluate_retrieval(const std::vector<RetrievalDocument>& documents, int n_vocab,
                                           std::span<const std::unique_ptr<LogitSource>> sources,
                                           const RetrievalOptions& options,
                                           const std::function<void(std::int64_t)>& advance) {
  RetrievalResult result{options, /*text=*/"", {}, {}};
  for (const auto& source : sources) result.rows.push_back({source->name(), "", {}, 0, source->plan()});
  Tokens all;
  for (const RetrievalDocument& document : documents) {
    all.insert(all.end(), document.tokens.begin(), document.tokens.end());
    for (const RetrievalQuestion& question : document.questions)
      result.questions.push_back({question.task, document.context, document.number, question.depth});
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Status status = read_and_answer(*sources[i], document, n_vocab, result.rows[i]);
      if (!status.ok()) return error("{}: {}", sources[i]->name(), status.error().message);
      advance(tokens_to_run({document}));
    }
  }
  result.text = fingerprint(all);
  return result;
}

RetrievalFigures summarize(const RetrievalResult& result, const RetrievalRow& row,
                           const QuestionFilter& filter) {
  RetrievalFigures figures;
  std::map<std::pair<int, int>, std::vector<double>> by_document;
  std::vector<double> differences;
  for (std::size_t i = 0; i < result.questions.size(); ++i) {
    const AskedQuestion& asked = result.questions[i];
    if (!filter(asked)) continue;
    ++figures.questions;
    figures.exact += row.scores[i].exact ? 1 : 0;
    figures.logp += row.scores[i].logp;
    differences.push_back(row.scores[i].logp - result.rows.front().scores[i].logp);
    figures.difference += differences.back();
    by_document[{asked.context, asked.document}].push_back(differences.back());
  }
  if (figures.questions == 0) return figures;
  figures.exact /= figures.questions;
  figures.logp /= figures.questions;
  figures.difference /= figures.questions;
  if (by_document.size() >= kDocumentsToResample) {
    differences.clear();
    for (const auto& [document, values] : by_document) {
      double sum = 0;
      for (const double value : values) sum += value;
      differences.push_back(sum / static_cast<double>(values.size()));
    }
  }
  figures.interval = bootstrap_mean(differences);
  return figures;
}

}  // namespace kvant
