#include "task/eval_stages.h"

#include <algorithm>

#include "base/progress.h"
#include "base/warn.h"
#include "eval/cache_size.h"
#include "eval/llama_reference.h"
#include "model/tokenizer.h"
#include "task/eval_sources.h"

namespace kvant {
namespace {

// At most this many prompts of --drift are completed side by side.
constexpr int kMostDriftTexts = 16;

// Returns the number of tokens that one source will run. Warns if the text has fewer chunks than
// options.chunks.
std::int64_t tokens_of(const EvalText& text, const QualityOptions& options) {
  const int n_chunks = chunks_available(text, options);
  if (n_chunks < options.chunks && n_chunks > 0) {
    warn(fmt::format("the text has only {} chunks of {} tokens, not {}", n_chunks, options.context,
                     options.chunks));
  }
  return std::int64_t{n_chunks} * options.context;
}

std::int64_t logit_bytes(const EvalStage& stage, int n_rows) {
  return std::int64_t{n_rows} * stage.session.engine().n_vocab() * static_cast<std::int64_t>(sizeof(float));
}

EvalSources sources_of(const EvalStage& stage, int context, int n_texts = 1) {
  return {stage.session, stage.model, context, stage.n_threads, n_texts};
}

template <class Rows>
void add_labels(const std::vector<EvalRow>& from, Rows& rows) {
  for (std::size_t i = 0; i < from.size(); ++i) rows[i].label = from[i].label;
}

}  // namespace

Result<QualityResult> run_quality(const EvalStage& stage, const EvalText& text,
                                  const QualityOptions& options) {
  EvalSources sources = sources_of(stage, options.context);
  const auto made = sources.make(stage.rows, logit_bytes(stage, 2 * options.step_tokens));
  if (!made.ok()) return made.error();
  Progress progress("evaluating", tokens_of(text, options) * std::ssize(*made), "tokens");
  auto result =
      evaluate_quality(text, stage.session.engine().n_vocab(), *made->front(), std::span(*made).subspan(1),
                       options, [&](std::int64_t n) { progress.advance(n); });
  if (result.ok()) add_labels(stage.rows, result->rows);
  return result;
}

Result<LayerResult> run_layers(const EvalStage& stage, const EvalText& text, const QualityOptions& options) {
  std::vector<LayerCandidate> candidates;
  std::int64_t bytes = 0;
  for (const EvalRow& row : stage.rows) {
    if (names_llama(row.name))
      return error("--layers supports kvant's recipes only: leave '{}' out of --kv", row.name);
    const auto plan = stage.session.plan(row.recipe, row.calibration_text);
    if (!plan.ok()) return plan.error();
    bytes += largest_cache_bytes(*plan, options.context);
    candidates.push_back({(*plan)->name, *plan});
  }
  KVANT_RETURN_IF_ERROR(stage.session.check_cache_memory(
      fmt::format("evaluating {} caches of {} tokens", candidates.size(), options.context), bytes));
  Progress progress("evaluating layers", tokens_of(text, options), "tokens");
  auto result = evaluate_layers(text, stage.session.engine(), stage.session.backend(), candidates.front(),
                                std::span(candidates).subspan(1), options,
                                [&](std::int64_t n) { progress.advance(n); });
  if (result.ok()) add_labels({stage.rows.begin() + 1, stage.rows.end()}, result->rows);
  return result;
}

Result<RetrievalResult> run_retrieval(const EvalStage& stage, const std::string& text,
                                      const RetrievalOptions& options) {
  Engine& engine = stage.session.engine();
  const auto documents = make_retrieval_documents(engine.tokenizer(), text, options);
  if (!documents.ok()) return documents.error();
  const int longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  EvalSources sources = sources_of(stage, longest);
  const auto made = sources.make(stage.rows, logit_bytes(stage, /*n_rows=*/32));
  if (!made.ok()) return made.error();
  Progress progress("reading documents", tokens_to_run(*documents) * std::ssize(*made), "tokens");
  auto result = evaluate_retrieval(*documents, engine.n_vocab(), *made, options,
                                   [&](std::int64_t n) { progress.advance(n); });
  if (result.ok()) add_labels(stage.rows, result->rows);
  return result;
}

Result<LimitResult> run_limits(const EvalStage& stage, const std::string& text, const LimitOptions& options) {
  Engine& engine = stage.session.engine();
  const auto documents = make_limit_documents(engine.tokenizer(), text, options);
  if (!documents.ok()) return documents.error();
  EvalSources sources = sources_of(stage, options.contexts.back());
  const auto made = sources.make(stage.rows, logit_bytes(stage, /*n_rows=*/32));
  if (!made.ok()) return made.error();
  Progress progress("measuring limits", std::ssize(*documents) * std::ssize(*made), "documents");
  return evaluate_limits(*documents, engine.tokenizer(), engine.n_vocab(), *made, options,
                         [&] { progress.advance(1); });
}

Result<GreedyResult> run_greedy(const EvalStage& stage, const std::vector<std::vector<std::int32_t>>& prompts,
                                int generated_tokens) {
  Engine& engine = stage.session.engine();
  std::size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  EvalSources sources = sources_of(stage, static_cast<int>(longest) + generated_tokens);
  const auto made = sources.make(stage.rows, logit_bytes(stage, generated_tokens));
  if (!made.ok()) return made.error();
  const GreedyOptions options{generated_tokens,
                              [&](std::int32_t token) { return engine.tokenizer().ends_generation(token); }};
  Progress progress("generating", std::ssize(prompts) * std::ssize(*made), "generations");
  auto result =
      evaluate_greedy(prompts, engine.n_vocab(), *made, options, [&](int n) { progress.advance(n); });
  if (result.ok()) add_labels(stage.rows, result->rows);
  return result;
}

Result<DriftResult> run_drift(const EvalStage& stage, const std::vector<std::vector<std::int32_t>>& prompts,
                              int generated_tokens) {
  Engine& engine = stage.session.engine();
  std::size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const bool with_llama =
      std::ranges::any_of(stage.rows, [](const EvalRow& row) { return names_llama(row.name); });
  int n_texts = with_llama ? 1 : std::min(kMostDriftTexts, static_cast<int>(prompts.size()));
  const auto made = make_what_fits(n_texts, [&](int n) {
    return sources_of(stage, static_cast<int>(longest) + generated_tokens, n)
        .make(stage.rows, logit_bytes(stage, 2 * n));
  });
  if (!made.ok()) return made.error();
  const DriftOptions options{
      .generated_tokens = generated_tokens,
      .n_texts = n_texts,
      .n_threads = stage.n_threads,
      .ends_generation = [&](std::int32_t token) { return engine.tokenizer().ends_generation(token); }};
  Progress progress("generating", std::ssize(prompts) * std::ssize(*made) * generated_tokens, "tokens");
  auto result =
      evaluate_drift(prompts, engine.n_vocab(), *made, options, [&](int n) { progress.advance(n); });
  if (result.ok()) add_labels(stage.rows, result->rows);
  return result;
}

}  // namespace kvant
