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
  CLI::App* command = program.add_subcommand("eval", "measure the quality loss of KV-cache recipes");
  options->common.backend = "reference";
  add_model_options(*command, options->common, /*many_recipes=*/true);
  add_device_option(*command, options->common);
  command->add_option("-f,--file", options->file, "text to evaluate on")->required();
  command
      ->add_option("--suite", options->evaluation.suite,
                   "run a predefined comparison, such as an ablation of a paper; 'help' lists them. Other "
                   "options override those of the suite, and --kv adds rows")
      ->check(list_suites_if_asked);
  command
      ->add_option("-c,--ctx-size", options->evaluation.contexts,
                   "tokens per chunk, of which the second half is scored; several values, separated by "
                   "commas, run one after the other [2048]")
      ->delimiter(',')
      ->check(CLI::Range(2, 1 << 24));
  command
      ->add_option("--chunks", options->evaluation.chunks,
                   "maximum number of chunks (or prompts); 0: the whole text [16]")
      ->check(CLI::Range(0, 1 << 24));
  command
      ->add_option("--calibrate-on", options->evaluation.calibrate_on,
                   "calibration texts A,B: a recipe that needs calibration gets a row for each")
      ->delimiter(',')
      ->excludes("--calibration");
  auto* reference = command->add_option("--reference", options->evaluation.reference,
                                        "recipe that all others are compared with, or llama.cpp:TYPE [bf16]");
  command->add_option("--against", options->against, "same as --reference llama.cpp:f16")
      ->check(CLI::IsMember({"llama.cpp"}))
      ->excludes(reference);
  auto* layers =
      command->add_flag("--layers", options->evaluation.layers,
                        "compare the attention outputs of each layer instead of predictions, with the "
                        "reference's Q, K and V for all caches; also report skipped and protected tokens");
  auto* retrieval = command->add_flag("--retrieval", options->evaluation.retrieval,
                                      "needle in a haystack: ask about facts hidden in the text instead of "
                                      "comparing predictions, with --chunks documents for each -c");
  command->add_option("--seed", options->evaluation.seed, "seed for the facts of --retrieval")
      ->capture_default_str();
  auto* greedy = command->add_flag(
      "--greedy", options->evaluation.greedy,
      "count the tokens for which greedy generations agree, instead of comparing predictions; the text has "
      "one prompt per line, or JSON with \"prompt\" or \"question\"");
  command
      ->add_option("-n,--n-predict", options->evaluation.generated_tokens,
                   "maximum number of tokens to generate with --greedy")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  greedy->excludes(layers)->excludes(retrieval);
  layers->excludes(retrieval);
  command->add_flag("--all-prompt", options->evaluation.all_prompt,
                    "process the scored half as part of the prompt, not token by token");
  command
      ->add_option("--compare-backend", options->evaluation.compare_backend,
                   "compare attention backends instead of recipes: each recipe runs token by token on this "
                   "backend and on --backend")
      ->excludes(greedy)
      ->excludes(retrieval);
  command->add_flag("--control", options->evaluation.control,
                    "add a row for bf16 in smaller steps, which shows the effect of rounding alone");
  add_weights_option(*command, options->weights);
  return {command, [options, command]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            return evaluate(*options);
          }};
}

}  // namespace kvant
