// kvant eval measures the quality of KV caches. The reference is the model's own unquantized cache or one of
// llama.cpp's caches.
#include <cstdio>
#include <filesystem>

#include "base/json_file.h"
#include "base/text_file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "eval/report_json.h"
#include "eval/suite.h"
#include "task/evaluation.h"
#include "task/task_sets.h"

namespace kvant {
namespace {

constexpr const char* kLlamaReference = "llama.cpp:f16";

struct EvalOptions {
  ModelOptions common;
  EvaluationOptions evaluation;
  std::string file;
  std::string against;
  std::string weights = kUsualWeights;
  // The other options of --tasks are in `evaluation` and `common`.
  std::vector<std::string> tasks;
  std::string task_data;
  std::vector<int> depths = {0};
  int parallel = 0;
  bool resume = false;
  std::vector<std::string> judged_files;
};

// A completion of --drift has this many tokens unless -n says otherwise.
constexpr int kDriftTokens = 2048;
// A GPU runs this many sequences of --tasks at a time unless --parallel says otherwise. The CPU runs a few,
// which share the reading of the weights.
constexpr int kTasksOnDevice = 64, kTasksOnCpu = 8;

EvaluationOptions evaluation_options(const EvalOptions& options) {
  EvaluationOptions evaluation = options.evaluation;
  evaluation.session = options.common;
  evaluation.weights = weight_mode(options.weights);
  if (evaluation.suite.empty() || names_recipes(options.common))
    evaluation.recipes = row_names(options.common);
  if (!options.against.empty()) evaluation.reference = kLlamaReference;
  return evaluation;
}

// Returns the text of an earlier result if --resume asks for it and the file exists.
Result<std::string> earlier_result(const EvalOptions& options) {
  const std::string& file = options.common.json;
  if (!options.resume) return std::string();
  if (file.empty()) return error("--resume continues the result in the file of --json: add --json");
  if (!std::filesystem::exists(file)) return std::string();
  return read_text_file(file);
}

Status solve_tasks(const EvalOptions& options, bool limits_tokens) {
  const EvaluationOptions& evaluation = options.evaluation;
  if (options.task_data.empty()) return error("--tasks needs the folder of the tasks' data: add --task-data");
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  auto earlier = earlier_result(options);
  if (!earlier.ok()) return earlier.error();
  const int usual = options.common.device == "cpu" ? kTasksOnCpu : kTasksOnDevice;
  const TaskSetOptions tasks{.session = options.common,
                             .weights = weight_mode(options.weights),
                             .weights_name = options.weights,
                             .tasks = options.tasks,
                             .data = options.task_data,
                             .depths = options.depths,
                             .text_file = options.file,
                             .problems = std::max(evaluation.chunks, 0),
                             .max_tokens = limits_tokens ? evaluation.generated_tokens : 0,
                             .parallel = options.parallel > 0 ? options.parallel : usual,
                             .recipes = row_names(options.common),
                             .reference = evaluation.reference,
                             .control = evaluation.control,
                             .calibrate_on = evaluation.calibrate_on,
                             .earlier = std::move(earlier).value(),
                             .judged_files = options.judged_files};
  const auto act = tasks.judged_files.empty() ? run_task_sets : judge_task_sets;
  return act(
      tasks,
      [&](const nlohmann::ordered_json& result) {
        return options.common.json.empty() ? Status()
                                           : write_whole_file(options.common.json, json_text(result));
      },
      [](const std::string& shown) { fmt::print("{}", shown); });
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

// Prints the list of tasks if the name is "help", which must work without a model. Returns the error of any
// other name that is no task.
std::string check_task(const std::string& name) {
  if (name != "help") {
    const Status known = check_task_name(name);
    return known.ok() ? "" : known.error().message;
  }
  fmt::print("{}", task_set_list());
  throw CLI::Success();
}

// Adds the options of --tasks, and returns --tasks itself.
CLI::Option* add_task_options(CLI::App& command, EvalOptions& options) {
  auto* tasks =
      command
          .add_option(
              "--tasks", options.tasks,
              "solve problems instead of comparing predictions: humaneval, gsm8k, bfcl-simple, "
              "bfcl-multiple, bfcl-parallel; 'help' describes them. humaneval runs the programs that the "
              "model writes, in a sandbox")
          ->delimiter(',')
          ->check(check_task);
  command
      .add_option("--task-data", options.task_data,
                  "folder of the data of --tasks, which scripts/fetch-tasks fills")
      ->needs(tasks);
  command
      .add_option(
          "--depths", options.depths,
          "ask for the tool calls of bfcl-* after this many tokens of the text of -f; several values, "
          "separated by commas [0]")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->needs(tasks);
  command
      .add_option("--parallel", options.parallel,
                  "maximum number of sequences that run at a time with --tasks [64 on a GPU, 8 on the CPU]")
      ->check(CLI::Range(1, 4096))
      ->needs(tasks);
  auto* resume = command
                     .add_flag("--resume", options.resume,
                               "continue the result of --tasks in the file of --json: tasks of recipes in it "
                               "do not run again, and the other settings must be the same")
                     ->needs(tasks);
  command
      .add_option("--judge", options.judged_files,
                  "judge the completions in these results of --tasks again, and join the results; no model "
                  "runs. The first recipe of the first file is the reference")
      ->delimiter(',')
      ->needs(tasks)
      ->excludes(resume);
  return tasks;
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
  command->add_option("-f,--file", options->file, "text to evaluate on; required without --tasks");
  auto* suite =
      command
          ->add_option(
              "--suite", options->evaluation.suite,
              "run a predefined comparison, such as an ablation of a paper; 'help' lists them. Other "
              "options override those of the suite, and --kv adds rows")
          ->check(list_suites_if_asked);
  command
      ->add_option("-c,--ctx-size", options->evaluation.contexts,
                   "tokens per chunk, an even number, of which the second half is scored; several values, "
                   "separated by commas, run one after the other [2048]")
      ->delimiter(',')
      ->check(CLI::Range(kFewestChunkTokens, 1 << 24));
  command
      ->add_option("--chunks", options->evaluation.chunks,
                   "maximum number of chunks, prompts, or problems of a task; 0: all [16; problems: all]")
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
  auto* tokens =
      command
          ->add_option(
              "-n,--n-predict", options->evaluation.generated_tokens,
              "maximum number of tokens to generate with --greedy or --tasks (default with --tasks: by task)")
          ->check(CLI::Range(1, 1 << 20))
          ->capture_default_str();
  auto* drift = command->add_flag(
      "--drift", options->evaluation.drift,
      "compare predictions by position while every cache reads the reference's greedy completions token by "
      "token; the text has prompts as for --greedy, and -n sets the tokens of a completion [2048]");
  drift->excludes(layers)->excludes(retrieval)->excludes(greedy);
  greedy->excludes(layers)->excludes(retrieval);
  layers->excludes(retrieval);
  auto* tasks = add_task_options(*command, *options);
  tasks->excludes(layers)->excludes(retrieval)->excludes(greedy)->excludes(drift)->excludes(suite);
  command->add_flag("--all-prompt", options->evaluation.all_prompt,
                    "process the scored half as part of the prompt, not token by token");
  command
      ->add_option("--compare-backend", options->evaluation.compare_backend,
                   "compare attention backends instead of recipes: each recipe runs token by token on this "
                   "backend and on --backend")
      ->excludes(greedy)
      ->excludes(drift)
      ->excludes(retrieval)
      ->excludes(tasks);
  auto* control =
      command->add_flag("--control", options->evaluation.control,
                        "add a row for bf16 in smaller steps, which shows the effect of rounding alone");
  // Both backends run in steps of the same size, because steps of different sizes round differently.
  control->excludes("--compare-backend");
  // Earlier results have their own rows.
  for (const char* chosen : {"--kv", "--reference", "--control"})
    command->get_option("--judge")->excludes(command->get_option(chosen));
  add_weights_option(*command, options->weights);
  command->final_callback([options] {
    if (options->file.empty() && options->tasks.empty()) throw CLI::RequiredError("--file");
  });
  return {command, [options, command, tokens]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            if (!options->tasks.empty()) return solve_tasks(*options, /*limits_tokens=*/tokens->count() > 0);
            if (options->evaluation.drift && tokens->count() == 0)
              options->evaluation.generated_tokens = kDriftTokens;
            return evaluate(*options);
          }};
}

}  // namespace kvant
