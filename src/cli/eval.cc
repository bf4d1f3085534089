// kvant eval: the quality of KV caches, against the model's own unquantized cache or llama.cpp's.
#include <algorithm>
#include <cstdio>

#include "base/json_file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/eval_backend.h"
#include "cli/eval_rows.h"
#include "cli/session.h"
#include "eval/cache_size.h"
#include "eval/engine_source.h"
#include "eval/layer_eval.h"
#include "eval/layer_report.h"
#include "eval/llama_reference.h"
#include "eval/quality_eval.h"
#include "eval/report_json.h"
#include "eval/suite.h"

namespace kvant {
namespace {

constexpr const char* kLlamaReference = "llama.cpp:f16";

struct EvalOptions {
  ModelOptions common;
  std::string file;
  std::string suite;
  std::string reference;  // empty: the suite's, or bf16
  std::string against;
  std::vector<int> contexts;  // empty: the suite's, or 2048
  int chunks = -1;            // -1: the suite's, or 16
  std::vector<std::string> calibrate_on;
  bool layers = false;
  std::string weights = "f32";
  std::string compare_backend;  // empty: none
  bool control = false;
  bool all_prompt = false;
};

// What is to be done, from a suite and the command line, which has the last word.
struct Evaluation {
  const EvalOptions& options;
  Suite suite;
  QualityOptions quality;  // of the context that is being run
};

Result<Evaluation> evaluation_of(const EvalOptions& options) {
  Evaluation evaluation{options, Suite{.chunks = 16}, {}};
  Suite& suite = evaluation.suite;
  if (!options.suite.empty()) {
    auto found = find_suite(options.suite);
    if (!found.ok()) return found.error();
    suite = std::move(found).value();
  }
  if (options.suite.empty() || names_recipes(options.common)) {
    for (const std::string& name : row_names(options.common)) suite.rows.push_back({"", name});
  }
  if (!options.reference.empty()) suite.reference = options.reference;
  if (!options.against.empty()) suite.reference = kLlamaReference;
  if (!options.contexts.empty()) suite.contexts = options.contexts;
  if (options.chunks >= 0) suite.chunks = options.chunks;
  suite.layers = suite.layers || options.layers;
  evaluation.quality.chunks = suite.chunks;
  evaluation.quality.all_prompt = suite.all_prompt || options.all_prompt;
  evaluation.quality.n_threads = options.common.n_threads;
  for (const int context : suite.contexts) {
    if (context % 2 != 0) return error("the context of {} tokens must be even", context);
  }
  return evaluation;
}

// Makes the sources of the rows; llama.cpp's model is loaded if one of them needs it.
class Sources {
 public:
  Sources(const Session& session, const Evaluation& evaluation)
      : session_(session), evaluation_(evaluation) {}

  Result<std::unique_ptr<LogitSource>> make(const EvalRow& row) {
    if (names_llama(row.name)) return make_llama(row);
    const auto plan = session_.plan(row.recipe, row.calibration_text);
    if (!plan.ok()) return plan.error();
    cache_bytes_ += predicted_cache_bytes(**plan, evaluation_.quality.context);
    return make_engine_source(row.name, session_.engine(), session_.backend(), *plan, row.step_tokens);
  }
  // Of all kvant's rows.
  std::int64_t cache_bytes() const { return cache_bytes_; }

 private:
  Result<std::unique_ptr<LogitSource>> make_llama(const EvalRow& row) {
    if (llama_ == nullptr) {
      auto loaded = LlamaReference::load_f32(evaluation_.options.common.model);
      if (!loaded.ok()) return loaded.error();
      llama_ = std::move(loaded).value();
    }
    return llama_->source(row.name, evaluation_.quality.context, row.step_tokens,
                          evaluation_.quality.n_threads);
  }

  const Session& session_;
  const Evaluation& evaluation_;
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

// A document for the context that is being run; prints its table.
Result<nlohmann::ordered_json> evaluate_logits(const Session& session, const Evaluation& evaluation,
                                               const std::vector<EvalRow>& rows, const EvalText& text) {
  const QualityOptions& quality = evaluation.quality;
  Sources sources(session, evaluation);
  std::vector<std::unique_ptr<LogitSource>> made;
  for (const EvalRow& row : rows) {
    auto source = sources.make(row);
    if (!source.ok()) return source.error();
    made.push_back(std::move(source).value());
  }
  const std::int64_t logit_bytes =
      2LL * quality.step_tokens * session.engine().n_vocab() * static_cast<std::int64_t>(sizeof(float));
  KVANT_RETURN_IF_ERROR(
      check_memory(fmt::format("evaluating {} caches of {} tokens", made.size(), quality.context),
                   sources.cache_bytes() + logit_bytes));
  const std::int64_t n_tokens = tokens_to_run(text, quality);
  Result<QualityResult> result = error("not run");
  {
    Progress progress("evaluating", n_tokens * static_cast<std::int64_t>(made.size()), "tokens");
    result = evaluate_quality(text, session.engine().n_vocab(), *made.front(), std::span(made).subspan(1),
                              quality, [&](std::int64_t n) { progress.advance(n); });
  }
  if (!result.ok()) return result.error();
  for (std::size_t i = 0; i < rows.size(); ++i) result->rows[i].label = rows[i].label;
  fmt::print("{}", eval_table(*result));
  for (const QualityRow& row : result->rows) {
    if (names_llama(row.name)) fmt::print("{}\n", row.plan.summary);
  }
  return eval_to_json(*result, evaluation.options.common.model);
}

// The same for the attention of each layer.
Result<nlohmann::ordered_json> evaluate_attention(const Session& session, const Evaluation& evaluation,
                                                  const std::vector<EvalRow>& rows, const EvalText& text) {
  const QualityOptions& quality = evaluation.quality;
  std::vector<LayerCandidate> candidates;
  std::int64_t bytes = 0;
  for (const EvalRow& row : rows) {
    if (names_llama(row.name))
      return error("'{}' has no layers to look into: --layers is for kvant's caches", row.name);
    const auto plan = session.plan(row.recipe, row.calibration_text);
    if (!plan.ok()) return plan.error();
    bytes += predicted_cache_bytes(**plan, quality.context);
    candidates.push_back({row.name, *plan});
  }
  KVANT_RETURN_IF_ERROR(check_memory(
      fmt::format("evaluating {} caches of {} tokens", candidates.size(), quality.context), bytes));
  const std::int64_t n_tokens = tokens_to_run(text, quality);
  Result<LayerResult> result = error("not run");
  {
    Progress progress("evaluating", n_tokens, "tokens");
    result = evaluate_layers(text, session.engine(), session.backend(), candidates.front(),
                             std::span(candidates).subspan(1), quality,
                             [&](std::int64_t n) { progress.advance(n); });
  }
  if (!result.ok()) return result.error();
  for (std::size_t i = 1; i < rows.size(); ++i) result->rows[i - 1].label = rows[i].label;
  fmt::print("{}", layers_table(*result));
  return layers_to_json(*result, evaluation.options.common.model);
}

// One document, or an array of one for each context.
Status write_json(const EvalOptions& options, const std::vector<nlohmann::ordered_json>& documents) {
  if (options.common.json.empty()) return {};
  const nlohmann::ordered_json all = documents;
  return write_whole_file(options.common.json, json_text(documents.size() == 1 ? documents.front() : all));
}

Status evaluate(const EvalOptions& options) {
  auto evaluation = evaluation_of(options);
  if (!evaluation.ok()) return evaluation.error();
  const Suite& suite = evaluation->suite;
  auto rows = parse_eval_rows(suite.reference, suite.rows, evaluation->quality.step_tokens);
  if (!rows.ok()) return rows.error();
  if (options.control) rows->push_back(control_row());
  const auto text = read_text_file(options.file);
  if (!text.ok()) return text.error();
  if (!options.common.json.empty()) KVANT_RETURN_IF_ERROR(check_writable(options.common.json));
  const WeightMode weights = options.weights == "f32" ? WeightMode::f32 : WeightMode::as_stored;
  const int longest = *std::max_element(suite.contexts.begin(), suite.contexts.end());
  const auto session = Session::open(options.common, weights, longest);
  if (!session.ok()) return session.error();
  const Geometry& geometry = session->engine().geometry();
  warn_beyond_training(geometry, longest);
  const auto tokens = tokenize_for_eval(session->engine().tokenizer(), *text);
  if (!tokens.ok()) return tokens.error();
  *rows = calibrated_on(*rows, options.calibrate_on, geometry);

  if (!suite.title.empty()) fmt::print("{}\n", suite.title);
  std::vector<nlohmann::ordered_json> documents;
  for (const int context : suite.contexts) {
    evaluation->quality.context = context;
    if (!options.compare_backend.empty()) {
      auto document = evaluate_backend(*session, options.compare_backend, *rows, *tokens, evaluation->quality,
                                       options.common.model);
      if (!document.ok()) return document.error();
      documents.push_back(std::move(document).value());
      continue;
    }
    auto document = suite.layers ? evaluate_attention(*session, *evaluation, *rows, *tokens)
                                 : evaluate_logits(*session, *evaluation, *rows, *tokens);
    if (!document.ok()) return document.error();
    if (!suite.name.empty()) (*document)["suite"] = suite.name;
    documents.push_back(std::move(document).value());
  }
  return write_json(options, documents);
}

// "help" lists the suites instead of running one: it needs no model.
std::string list_suites_if_asked(const std::string& name) {
  if (name != "help") return "";
  fmt::print("{}", suite_list());
  throw CLI::Success();
}

}  // namespace

Command add_eval_command(CLI::App& program) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = program.add_subcommand("eval", "measure what KV caches cost in quality");
  options->common.backend = "reference";
  add_model_options(*command, options->common, /*many_recipes=*/true);
  command->add_option("-f,--file", options->file, "the text")->required();
  command
      ->add_option("--suite", options->suite,
                   "a comparison that is kept ready, such as an ablation of a paper; 'help' lists them. "
                   "Other options go before its own, and --kv adds rows")
      ->check(list_suites_if_asked);
  command
      ->add_option("-c,--ctx-size", options->contexts,
                   "tokens of a chunk, whose second half is scored; several: one after the other [2048]")
      ->delimiter(',')
      ->check(CLI::Range(2, 1 << 24));
  command->add_option("--chunks", options->chunks, "most chunks; 0: the whole text [16]")
      ->check(CLI::Range(0, 1 << 24));
  command
      ->add_option("--calibrate-on", options->calibrate_on,
                   "texts to calibrate on, A,B: a row for each of a recipe that needs calibration")
      ->delimiter(',')
      ->excludes("--calibration");
  auto* reference =
      command->add_option("--reference", options->reference,
                          "the recipe that all others are compared with, or llama.cpp:TYPE [bf16]");
  command->add_option("--against", options->against, "the same as --reference llama.cpp:f16")
      ->check(CLI::IsMember({"llama.cpp"}))
      ->excludes(reference);
  command->add_flag("--layers", options->layers,
                    "instead of predictions, compare the attention outputs of each layer, all caches given "
                    "the reference's Q, K and V; also what is skipped and protected");
  command->add_flag("--all-prompt", options->all_prompt,
                    "run the scored half as part of the prompt, not as an answer");
  command->add_option(
      "--compare-backend", options->compare_backend,
      "instead of recipes, compare attention backends: each recipe on this one, token by token, "
      "against itself on --backend");
  command->add_flag("--control", options->control,
                    "add a row that runs bf16 in smaller steps: what rounding alone makes of it");
  command
      ->add_option("--weights", options->weights,
                   "f32: expanded, so that only the cache is quantized; stored: as in the file")
      ->check(CLI::IsMember({"f32", "stored"}))
      ->capture_default_str();
  return {command, [options] { return evaluate(*options); }};
}

}  // namespace kvant
