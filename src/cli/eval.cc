// kvant eval: the quality of KV caches, against the model's own unquantized cache or llama.cpp's.
#include <algorithm>
#include <cstdio>

#include "base/json_file.h"
#include "cli/command.h"
#include "cli/eval_backend.h"
#include "cli/eval_rows.h"
#include "cli/eval_stages.h"
#include "cli/session.h"
#include "eval/greedy/greedy_report.h"
#include "eval/greedy/prompts.h"
#include "eval/layer_report.h"
#include "eval/llama_reference.h"
#include "eval/report_json.h"
#include "eval/retrieval/retrieval_report.h"
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
  bool retrieval = false;
  bool greedy = false;
  int generated_tokens = 128;
  std::uint64_t seed = 1;
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
  Evaluation evaluation{options, Suite{.chunks = options.retrieval ? 3 : 16}, {}};
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
  suite.retrieval = suite.retrieval || options.retrieval;
  evaluation.quality.chunks = suite.chunks;
  evaluation.quality.all_prompt = suite.all_prompt || options.all_prompt;
  evaluation.quality.n_threads = options.common.n_threads;
  for (const int context : suite.contexts) {
    if (context % 2 != 0) return error("the context of {} tokens must be even", context);
  }
  return evaluation;
}

using Json = nlohmann::ordered_json;

// A document of the context that is being run; prints its table.
Result<Json> evaluate_context(const EvalStage& stage, const Evaluation& evaluation, const EvalText& text) {
  const EvalOptions& options = evaluation.options;
  const QualityOptions& quality = evaluation.quality;
  if (!options.compare_backend.empty()) {
    return evaluate_backend(stage.session, options.compare_backend, stage.rows, text, quality, stage.model);
  }
  if (evaluation.suite.layers) {
    const auto result = run_layers(stage, text, quality);
    if (!result.ok()) return result.error();
    fmt::print("{}", layers_table(*result));
    return layers_to_json(*result, stage.model);
  }
  const auto result = run_quality(stage, text, quality);
  if (!result.ok()) return result.error();
  fmt::print("{}", eval_table(*result));
  for (const QualityRow& row : result->rows) {
    if (names_llama(row.name)) fmt::print("{}\n", row.plan.summary);
  }
  return eval_to_json(*result, stage.model);
}

Result<std::vector<Json>> evaluate_contexts(const EvalStage& stage, Evaluation& evaluation,
                                            const std::string& text) {
  const auto tokens = tokenize_for_eval(stage.session.engine().tokenizer(), text);
  if (!tokens.ok()) return tokens.error();
  std::vector<Json> documents;
  for (const int context : evaluation.suite.contexts) {
    evaluation.quality.context = context;
    auto document = evaluate_context(stage, evaluation, *tokens);
    if (!document.ok()) return document.error();
    documents.push_back(std::move(document).value());
  }
  return documents;
}

Result<std::vector<Json>> evaluate_retrieved(const EvalStage& stage, const Evaluation& evaluation,
                                             const std::string& text) {
  const RetrievalOptions retrieval{evaluation.suite.contexts, std::max(evaluation.suite.chunks, 1),
                                   evaluation.options.seed};
  const auto result = run_retrieval(stage, text, retrieval);
  if (!result.ok()) return result.error();
  fmt::print("{}", retrieval_table(*result));
  return std::vector<Json>{retrieval_to_json(*result, stage.model)};
}

Result<std::vector<Json>> evaluate_greedy(const EvalStage& stage, const Evaluation& evaluation,
                                          const std::string& text) {
  auto prompts = parse_prompts(text);
  if (!prompts.ok()) return prompts.error();
  const auto maximum = static_cast<std::size_t>(evaluation.suite.chunks);
  if (maximum > 0 && prompts->size() > maximum) prompts->resize(maximum);
  std::vector<std::vector<std::int32_t>> encoded;
  for (const std::string& prompt : *prompts) {
    auto tokens = encode_prompt(stage.session.engine().tokenizer(), prompt);
    if (!tokens.ok()) return tokens.error();
    encoded.push_back(std::move(tokens).value());
  }
  const auto result = run_greedy(stage, encoded, evaluation.options.generated_tokens);
  if (!result.ok()) return result.error();
  fmt::print("{}", greedy_table(*result));
  return std::vector<Json>{greedy_to_json(*result, stage.model)};
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
  if (suite.layers) KVANT_RETURN_IF_ERROR(check_on_cpu(options.common, "--layers"));
  if (!options.compare_backend.empty())
    KVANT_RETURN_IF_ERROR(check_on_cpu(options.common, "--compare-backend"));
  const auto text = read_text_file(options.file);
  if (!text.ok()) return text.error();
  if (!options.common.json.empty()) KVANT_RETURN_IF_ERROR(check_writable(options.common.json));
  const WeightMode weights = options.weights == "f32" ? WeightMode::f32 : WeightMode::as_stored;
  const int longest = *std::max_element(suite.contexts.begin(), suite.contexts.end());
  const auto session = Session::open(options.common, weights, options.greedy ? 0 : longest);
  if (!session.ok()) return session.error();
  const Geometry& geometry = session->engine().geometry();
  if (!options.greedy) warn_beyond_training(geometry, longest);
  const EvalStage stage{*session, options.common.model, calibrated_on(*rows, options.calibrate_on, geometry),
                        options.common.n_threads};

  if (!suite.title.empty()) fmt::print("{}\n", suite.title);
  auto documents = options.greedy    ? evaluate_greedy(stage, *evaluation, *text)
                   : suite.retrieval ? evaluate_retrieved(stage, *evaluation, *text)
                                     : evaluate_contexts(stage, *evaluation, *text);
  if (!documents.ok()) return documents.error();
  for (Json& document : *documents) {
    if (!suite.name.empty()) document["suite"] = suite.name;
  }
  return write_json(options, *documents);
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
  add_device_option(*command, options->common);
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
  command->add_option("--chunks", options->chunks, "max chunks (or prompts); 0: the whole text [16]")
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
  auto* layers = command->add_flag(
      "--layers", options->layers,
      "instead of predictions, compare the attention outputs of each layer, all caches given "
      "the reference's Q, K and V; also what is skipped and protected");
  auto* retrieval = command->add_flag("--retrieval", options->retrieval,
                                      "instead of predictions, needles in a haystack: ask about facts in the "
                                      "text, --chunks documents of each -c");
  command->add_option("--seed", options->seed, "what the facts of --retrieval are drawn by")
      ->capture_default_str();
  auto* greedy = command->add_flag(
      "--greedy", options->greedy,
      "instead of predictions, count the tokens for which greedy generations agree; the text "
      "has one prompt a line, or JSON with a \"prompt\" or \"question\"");
  command->add_option("-n,--n-predict", options->generated_tokens, "max tokens to generate with --greedy")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  greedy->excludes(layers)->excludes(retrieval);
  layers->excludes(retrieval);
  command->add_flag("--all-prompt", options->all_prompt,
                    "run the scored half as part of the prompt, not token by token");
  command
      ->add_option("--compare-backend", options->compare_backend,
                   "instead of recipes, compare attention backends: each recipe on this one, token by token, "
                   "against itself on --backend")
      ->excludes(greedy)
      ->excludes(retrieval);
  command->add_flag("--control", options->control,
                    "add a row that runs bf16 in smaller steps: what rounding alone makes of it");
  command
      ->add_option("--weights", options->weights,
                   "f32: dequantized, so that only the cache is quantized; stored: as in the file")
      ->check(CLI::IsMember({"f32", "stored"}))
      ->capture_default_str();
  return {command, [options] {
            const Status chosen = choose_model(options->common);
            return chosen.ok() ? evaluate(*options) : chosen;
          }};
}

}  // namespace kvant
