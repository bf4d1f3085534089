#include "eval/greedy/greedy_eval.h"

#include <algorithm>

#include "eval/quality_eval.h"

namespace kvant {
namespace {

using Tokens = std::vector<std::int32_t>;

// Runs generate_greedily() from the start of a text.
Status generate(LogitSource& source, const Tokens& prompt, int n_vocab,
                const std::function<bool(std::int32_t)>& go_on) {
  KVANT_RETURN_IF_ERROR(source.begin());
  return generate_greedily(source, prompt, n_vocab, go_on);
}

Result<Tokens> whole_generation(LogitSource& source, const Tokens& prompt, int n_vocab,
                                const GreedyOptions& options) {
  Tokens tokens;
  const Status status = generate(source, prompt, n_vocab, [&](std::int32_t token) {
    tokens.push_back(token);
    return static_cast<int>(tokens.size()) < options.generated_tokens && !options.ends_generation(token);
  });
  if (!status.ok()) return error("{}: {}", source.name(), status.error().message);
  return tokens;
}

// Counts the tokens of `expected` before the first token that the source would not generate.
Result<int> tokens_agreed(LogitSource& source, const Tokens& prompt, const Tokens& expected, int n_vocab) {
  std::size_t agreed = 0;
  const Status status = generate(source, prompt, n_vocab, [&](std::int32_t token) {
    if (token != expected[agreed]) return false;
    return ++agreed < expected.size();
  });
  if (!status.ok()) return error("{}: {}", source.name(), status.error().message);
  return static_cast<int>(agreed);
}

}  // namespace

Status generate_greedily(LogitSource& source, std::span<const std::int32_t> prompt, int n_vocab,
                         const std::function<bool(std::int32_t)>& go_on) {
  std::vector<float> row(n_vocab);
  const MatrixView<float> logits(row.data(), 1, n_vocab);
  KVANT_RETURN_IF_ERROR(source.step(prompt, /*is_prompt=*/true, logits));
  while (true) {
    const auto token = static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    if (!go_on(token)) return {};
    KVANT_RETURN_IF_ERROR(source.step({&token, 1}, /*is_prompt=*/false, logits));
  }
}

Result<GreedyResult> evaluate_greedy(std::span<const std::vector<std::int32_t>> prompts, int n_vocab,
                                     std::span<const std::unique_ptr<LogitSource>> sources,
                                     const GreedyOptions& options, const std::function<void(int)>& advance) {
  GreedyResult result{options.generated_tokens, /*text=*/"", {}, {}};
  for (const auto& source : sources) result.rows.push_back({source->name(), "", {}, source->plan()});
  Tokens all;
  for (const Tokens& prompt : prompts) {
    all.insert(all.end(), prompt.begin(), prompt.end());
    const auto expected = whole_generation(*sources.front(), prompt, n_vocab, options);
    if (!expected.ok()) return expected.error();
    result.lengths.push_back(static_cast<int>(expected->size()));
    result.rows.front().agreed.push_back(result.lengths.back());
    advance(1);
    for (std::size_t i = 1; i < sources.size(); ++i) {
      const auto agreed = tokens_agreed(*sources[i], prompt, *expected, n_vocab);
      if (!agreed.ok()) return agreed.error();
      result.rows[i].agreed.push_back(*agreed);
      advance(1);
    }
  }
  result.text = fingerprint(all);
  return result;
}

GreedyFigures summarize(const GreedyResult& result, const GreedyRow& row) {
  GreedyFigures figures;
  if (row.agreed.empty()) return figures;
  std::vector<double> agreed(row.agreed.begin(), row.agreed.end());
  double identical = 0, sum = 0;
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    identical += row.agreed[i] == result.lengths[i] ? 1 : 0;
    sum += agreed[i];
  }
  const Interval interval = bootstrap_mean(agreed);
  std::sort(agreed.begin(), agreed.end());
  const auto n = static_cast<double>(agreed.size());
  return {sum / n, interval.lo, interval.hi, quantile(agreed, 0.5), identical / n};
}

}  // namespace kvant
