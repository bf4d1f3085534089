// kvant eval: the quality of KV caches, against the model's own unquantized cache or llama.cpp's.
#include <cstdio>

#include "base/json_file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/session.h"
#include "eval/cache_size.h"
#include "eval/engine_source.h"
#include "eval/layer_eval.h"
#include "eval/layer_report.h"
#include "eval/llama_reference.h"
#include "eval/quality_eval.h"
#include "eval/report_json.h"

namespace kvant {
namespace {

constexpr const char* kLlamaReference = "llama.cpp:f16";
constexpr int kControlStep = 128;  // tokens a step in the control row

struct EvalOptions {
  ModelOptions common;
  std::string file;
  std::string reference = "bf16";
  std::string against;
  bool layers = false;
  std::string weights = "f32";
  bool control = false;
  QualityOptions quality;
};

// A row of the table before anything is loaded.
struct Row {
  std::string name;
  Recipe recipe;  // unless names_llama(name)
  int step_tokens = 0;
};

Result<Row> parse_row(const std::string& name, int step_tokens) {
  if (names_llama(name)) {
    KVANT_RETURN_IF_ERROR(check_llama_name(name));
    return Row{name, {}, step_tokens};
  }
  const auto recipe = parse_recipe(name);
  if (!recipe.ok()) return recipe.error();
  return Row{label(*recipe), *recipe, step_tokens};
}

// The reference first. A row that equals it is the reference, and not run twice.
Result<std::vector<Row>> parse_rows(const EvalOptions& options) {
  const int step = options.quality.step_tokens;
  auto reference = parse_row(options.against.empty() ? options.reference : kLlamaReference, step);
  if (!reference.ok()) return reference.error();
  std::vector<Row> rows = {*reference};
  for (const std::string& name : row_names(options.common)) {
    auto row = parse_row(name, step);
    if (!row.ok()) return row.error();
    const bool same = names_llama(name) || names_llama(reference->name)
                          ? name == reference->name
                          : to_string(row->recipe) == to_string(reference->recipe);
    if (!same) rows.push_back(*row);
  }
  if (options.control) {
    auto control = parse_row("bf16", kControlStep);
    if (!control.ok()) return control.error();
    control->name = fmt::format("bf16 (steps of {})", kControlStep);
    rows.push_back(*control);
  }
  return rows;
}

// Makes the sources of the rows; llama.cpp's model is loaded if one of them needs it.
class Sources {
 public:
  Sources(const Session& session, const EvalOptions& options) : session_(session), options_(options) {}

  Result<std::unique_ptr<LogitSource>> make(const Row& row) {
    if (names_llama(row.name)) return make_llama(row);
    const auto plan = session_.plan(row.recipe);
    if (!plan.ok()) return plan.error();
    cache_bytes_ += predicted_cache_bytes(**plan, options_.quality.context);
    return make_engine_source(row.name, session_.engine(), session_.backend(), *plan, row.step_tokens);
  }
  // Of all kvant's rows.
  std::int64_t cache_bytes() const { return cache_bytes_; }

 private:
  Result<std::unique_ptr<LogitSource>> make_llama(const Row& row) {
    if (llama_ == nullptr) {
      auto loaded = LlamaReference::load_f32(options_.common.model);
      if (!loaded.ok()) return loaded.error();
      llama_ = std::move(loaded).value();
    }
    return llama_->source(row.name, options_.quality.context, row.step_tokens, options_.common.n_threads);
  }

  const Session& session_;
  const EvalOptions& options_;
  std::unique_ptr<LlamaReference> llama_;
  std::int64_t cache_bytes_ = 0;
};

// Warns where the text has fewer chunks than were asked for. The tokens that one source will run.
std::int64_t tokens_to_run(const EvalText& text, const QualityOptions& options) {
  const int n_chunks = chunks_available(text, options);
  if (n_chunks < options.chunks && n_chunks > 0) {
    warn(fmt::format("the text has {} chunks of {} tokens, not {}", n_chunks, options.context,
                     options.chunks));
  }
  return std::int64_t{n_chunks} * options.context;
}

Status write_json(const EvalOptions& options, const nlohmann::ordered_json& json) {
  if (options.common.json.empty()) return {};
  return write_whole_file(options.common.json, json_text(json));
}

Status evaluate_logits(const Session& session, const EvalOptions& options, const std::vector<Row>& rows,
                       const EvalText& text) {
  Sources sources(session, options);
  std::vector<std::unique_ptr<LogitSource>> made;
  for (const Row& row : rows) {
    auto source = sources.make(row);
    if (!source.ok()) return source.error();
    made.push_back(std::move(source).value());
  }
  const std::int64_t logit_bytes = 2LL * options.quality.step_tokens * session.engine().n_vocab() *
                                   static_cast<std::int64_t>(sizeof(float));
  KVANT_RETURN_IF_ERROR(
      check_memory(fmt::format("evaluating {} caches of {} tokens", made.size(), options.quality.context),
                   sources.cache_bytes() + logit_bytes));
  const std::int64_t n_tokens = tokens_to_run(text, options.quality);
  Result<QualityResult> result = error("not run");
  {
    Progress progress("evaluating", n_tokens * static_cast<std::int64_t>(made.size()), "tokens");
    result = evaluate_quality(text, session.engine().n_vocab(), *made.front(), std::span(made).subspan(1),
                              options.quality, [&](std::int64_t n) { progress.advance(n); });
  }
  if (!result.ok()) return result.error();
  fmt::print("{}", eval_table(*result));
  for (const QualityRow& row : result->rows) {
    if (names_llama(row.name)) fmt::print("{}\n", row.plan.summary);
  }
  return write_json(options, eval_to_json(*result, options.common.model));
}

Status evaluate_attention(const Session& session, const EvalOptions& options, const std::vector<Row>& rows,
                          const EvalText& text) {
  std::vector<LayerCandidate> candidates;
  std::int64_t bytes = 0;
  for (const Row& row : rows) {
    if (names_llama(row.name))
      return error("'{}' has no layers to look into: --layers is for kvant's caches", row.name);
    const auto plan = session.plan(row.recipe);
    if (!plan.ok()) return plan.error();
    bytes += predicted_cache_bytes(**plan, options.quality.context);
    candidates.push_back({row.name, *plan});
  }
  KVANT_RETURN_IF_ERROR(check_memory(
      fmt::format("evaluating {} caches of {} tokens", candidates.size(), options.quality.context), bytes));
  const std::int64_t n_tokens = tokens_to_run(text, options.quality);
  Result<LayerResult> result = error("not run");
  {
    Progress progress("evaluating", n_tokens, "tokens");
    result = evaluate_layers(text, session.engine(), session.backend(), candidates.front(),
                             std::span(candidates).subspan(1), options.quality,
                             [&](std::int64_t n) { progress.advance(n); });
  }
  if (!result.ok()) return result.error();
  fmt::print("{}", layers_table(*result));
  return write_json(options, layers_to_json(*result, options.common.model));
}

Status evaluate(const EvalOptions& options) {
  if (options.quality.context % 2 != 0)
    return error("the context of {} tokens must be even", options.quality.context);
  const auto rows = parse_rows(options);
  if (!rows.ok()) return rows.error();
  const auto text = read_text_file(options.file);
  if (!text.ok()) return text.error();
  if (!options.common.json.empty()) KVANT_RETURN_IF_ERROR(check_writable(options.common.json));
  const WeightMode weights = options.weights == "f32" ? WeightMode::f32 : WeightMode::as_stored;
  const auto session = Session::open(options.common, weights, options.quality.context);
  if (!session.ok()) return session.error();
  warn_beyond_training(session->engine().geometry(), options.quality.context);
  const auto tokens = tokenize_for_eval(session->engine().tokenizer(), *text);
  if (!tokens.ok()) return tokens.error();
  return options.layers ? evaluate_attention(*session, options, *rows, *tokens)
                        : evaluate_logits(*session, options, *rows, *tokens);
}

}  // namespace

Command add_eval_command(CLI::App& program) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = program.add_subcommand("eval", "measure what KV caches cost in quality");
  add_model_options(*command, options->common, /*many_recipes=*/true);
  command->add_option("-f,--file", options->file, "the text")->required();
  command
      ->add_option("-c,--ctx-size", options->quality.context, "tokens of a chunk; its second half is scored")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  command->add_option("--chunks", options->quality.chunks, "most chunks; 0: the whole text")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  auto* reference = command
                        ->add_option("--reference", options->reference,
                                     "the recipe that all others are compared with, or llama.cpp:TYPE")
                        ->capture_default_str();
  command->add_option("--against", options->against, "the same as --reference llama.cpp:f16")
      ->check(CLI::IsMember({"llama.cpp"}))
      ->excludes(reference);
  command->add_flag("--layers", options->layers,
                    "instead of predictions, compare the attention outputs of each layer, all caches given "
                    "the reference's Q, K and V; also what is skipped and protected");
  command->add_flag("--all-prompt", options->quality.all_prompt,
                    "run the scored half as part of the prompt, not as an answer");
  command->add_flag("--control", options->control,
                    "add a row that runs bf16 in smaller steps: what rounding alone makes of it");
  command
      ->add_option("--weights", options->weights,
                   "f32: expanded, so that only the cache is quantized; stored: as in the file")
      ->check(CLI::IsMember({"f32", "stored"}))
      ->capture_default_str();
  return {command, [options] {
            options->quality.n_threads = options->common.n_threads;
            return evaluate(*options);
          }};
}

}  // namespace kvant
