#include "task/text_score.h"

#include <algorithm>

#include "eval/engine_source.h"
#include "generate/token_probabilities.h"

namespace kvant {
namespace {

// A step has at most kScoredStep tokens. The limit bounds the memory for logits.
constexpr int kScoredStep = 128;

}  // namespace

Result<std::vector<double>> score_tokens(Engine& engine, AttentionBackend& backend, PlacedPlan plan,
                                         std::span<const std::int32_t> tokens) {
  // The last token is only looked up in the predictions. The engine does not read the last token and cannot
  // check it.
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= engine.n_vocab())
      return error("token {} is not in the model's vocabulary of {}", token, engine.n_vocab());
  }
  const auto source = make_engine_source("", engine, backend, std::move(plan), kScoredStep);
  std::vector<float> logits(std::min<std::size_t>(kScoredStep, tokens.size()) * engine.n_vocab());
  std::vector<double> scores;
  for (std::size_t first = 0; first + 1 < tokens.size(); first += kScoredStep) {
    const std::size_t count = std::min<std::size_t>(kScoredStep, tokens.size() - 1 - first);
    const MatrixView<float> rows(logits.data(), static_cast<int>(count), engine.n_vocab());
    KVANT_RETURN_IF_ERROR(source->step(tokens.subspan(first, count), /*is_prompt=*/false, rows));
    for (std::size_t i = 0; i < count; ++i)
      scores.push_back(
          log_probability({rows.row(static_cast<int>(i)), static_cast<std::size_t>(engine.n_vocab())},
                          tokens[first + i + 1]));
  }
  return scores;
}

}  // namespace kvant
