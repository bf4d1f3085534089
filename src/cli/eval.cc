// kvant eval measures the quality of KV caches. The reference is the model's own unquantized cache or one of
// llama.cpp's caches.
#include <cstdio>

#include "base/json_file.h"
#include "base/text_file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "eval/report_json.h"
#include "eval/suite.h"
#include "task/evaluation.h"

namespace kvant {
namespace {

constexpr const char* kLlamaReference = "llama.cpp:f16";

struct EvalOptions {
  ModelOptions common;
  EvaluationOptions evaluation;
  std::string file;
  std::string against;
  std::string weights = kUsualWeights;
};

EvaluationOptions evaluation_options(const EvalOptions& options) {
  EvaluationOptions evaluation = options.evaluation;
  evaluation.session = options.common;
  evaluation.weights = weight_mode(options.weights);
  if (evaluation.suite.empty() || names_recipes(options.common))
    evaluation.recipes = row_names(options.common);
  if (!options.against.empty()) evaluation.reference = kLlamaReference;
  return evaluation;
}

Status evaluate(const EvalOptions& options) {
  const auto evaluation = Evaluation::make(evaluation_options(options));
  if (!evaluation.ok()) return evaluation.error();
  const auto text = read_text_file(options.file);
  if (!text.ok()) return text.error();
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  const auto documents = evaluation->run(*text, [](const std::string& shown) { fmt::print("{}", shown); });
  if (!documents.ok()) return documents.error();
  if (options.common.json.empty()) return {};
  // The file holds one document, or an array if there are several contexts.
  const nlohmann::ordered_json all = *documents;
  return write_whole_file(options.common.json, json_text(documents->size() == 1 ? documents->front() : all));
}

// Prints the list of suites if the name is "help", which must work without a model.
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
      ->add_option("--suite", options->evaluation.suite,
                   "a comparison that is kept ready, such as an ablation of a paper; 'help' lists them. "
                   "Other options go before its own, and --kv adds rows")
      ->check(list_suites_if_asked);
  command
      ->add_option("-c,--ctx-size", options->evaluation.contexts,
                   "tokens of a chunk, whose second half is scored; several: one after the other [2048]")
      ->delimiter(',')
      ->check(CLI::Range(2, 1 << 24));
  command
      ->add_option("--chunks", options->evaluation.chunks, "max chunks (or prompts); 0: the whole text [16]")
      ->check(CLI::Range(0, 1 << 24));
  command
      ->add_option("--calibrate-on", options->evaluation.calibrate_on,
                   "texts to calibrate on, A,B: a row for each of a recipe that needs calibration")
      ->delimiter(',')
      ->excludes("--calibration");
  auto* reference =
      command->add_option("--reference", options->evaluation.reference,
                          "the recipe that all others are compared with, or llama.cpp:TYPE [bf16]");
  command->add_option("--against", options->against, "the same as --reference llama.cpp:f16")
      ->check(CLI::IsMember({"llama.cpp"}))
      ->excludes(reference);
  auto* layers = command->add_flag(
      "--layers", options->evaluation.layers,
      "instead of predictions, compare the attention outputs of each layer, all caches given "
      "the reference's Q, K and V; also what is skipped and protected");
  auto* retrieval = command->add_flag("--retrieval", options->evaluation.retrieval,
                                      "instead of predictions, needles in a haystack: ask about facts in the "
                                      "text, --chunks documents of each -c");
  command->add_option("--seed", options->evaluation.seed, "what the facts of --retrieval are drawn by")
      ->capture_default_str();
  auto* greedy = command->add_flag(
      "--greedy", options->evaluation.greedy,
      "instead of predictions, count the tokens for which greedy generations agree; the text "
      "has one prompt a line, or JSON with a \"prompt\" or \"question\"");
  command
      ->add_option("-n,--n-predict", options->evaluation.generated_tokens,
                   "max tokens to generate with --greedy")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  greedy->excludes(layers)->excludes(retrieval);
  layers->excludes(retrieval);
  command->add_flag("--all-prompt", options->evaluation.all_prompt,
                    "run the scored half as part of the prompt, not token by token");
  command
      ->add_option("--compare-backend", options->evaluation.compare_backend,
                   "instead of recipes, compare attention backends: each recipe on this one, token by token, "
                   "against itself on --backend")
      ->excludes(greedy)
      ->excludes(retrieval);
  command->add_flag("--control", options->evaluation.control,
                    "add a row that runs bf16 in smaller steps: what rounding alone makes of it");
  add_weights_option(*command, options->weights);
  return {command, [options, command]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            return evaluate(*options);
          }};
}

}  // namespace kvant
