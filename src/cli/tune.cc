// kvant tune finds the best recipe of a given size for one model.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "calibrate/default_text.h"
#include "calibrate/size_budget.h"
#include "calibrate/tune.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "task/calibration_files.h"
#include "task/session.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// A budget in bits must hold at a context of kUsualContext tokens.
constexpr int kUsualContext = 8192;

struct TuneOptions {
  ModelOptions common;
  // Names the type of the weights while quality is judged.
  std::string weights = kUsualWeights;
  std::string budget, output, text_file;
  int length = 1024;  // tokens of each measured context
  // The search uses `contexts` contexts, and as many others judge the result.
  int contexts = 2;
  int trials = 16;
};

// Holds contexts of `length` tokens, spread evenly over the text. Every second context is held out to judge
// the result.
struct TuneText {
  std::vector<std::vector<std::int32_t>> tuning;
  EvalText held_out;
};

Result<TuneText> cut_text(const EvalText& text, const TuneOptions& options) {
  const int wanted = 2 * options.contexts;
  const auto available = static_cast<int>(text.tokens.size()) / options.length;
  if (available < wanted) {
    return error(
        "the text has {} tokens, which is too short for {} contexts of {}: give a longer text, or a smaller "
        "-c or --contexts",
        text.tokens.size(), wanted, options.length);
  }
  TuneText cut;
  cut.held_out.bos = text.bos;
  for (int i = 0; i < wanted; ++i) {
    const auto first = text.tokens.begin() + std::ptrdiff_t{1} *
                                                 (static_cast<std::int64_t>(i) * available / wanted) *
                                                 options.length;
    std::vector<std::int32_t> tokens(first, first + options.length);
    if (text.bos >= 0) tokens.front() = text.bos;
    if (i % 2 == 0) {
      cut.tuning.push_back(std::move(tokens));
    } else {
      cut.held_out.tokens.insert(cut.held_out.tokens.end(), tokens.begin(), tokens.end());
    }
  }
  return cut;
}

Result<TuneText> read_text(const TuneOptions& options, const Tokenizer& tokenizer) {
  const auto text = options.text_file.empty() ? Result<std::string>(default_calibration_text())
                                              : read_text_file(options.text_file);
  if (!text.ok()) return text.error();
  const auto tokens = tokenize_for_eval(tokenizer, *text);
  if (!tokens.ok()) return tokens.error();
  return cut_text(*tokens, options);
}

// Returns the recipe of --kv, or kvant-3bit without --kv. The recipe must have a budget, because tune
// allocates bits.
Result<Recipe> base_recipe(const ModelOptions& options) {
  if (!names_recipes(options)) return parse_recipe("kvant-3bit");
  auto recipe = one_recipe(options);
  if (recipe.ok() && recipe->budget == 0)
    return error(
        "{} has no formats to choose from: give a recipe with a ladder and a budget, such as kvant-3bit",
        label(*recipe));
  return recipe;
}

Json figures(const MetricsSummary& metrics) {
  return {{"kld_mean", metrics.kld_mean},
          {"kld_interval", {metrics.kld_lo, metrics.kld_hi}},
          {"kld_p999", metrics.kld_p999},
          {"top1", metrics.top1},
          {"ppl", metrics.ppl}};
}

Json to_json(const TuneResult& result, const TuneOptions& options, const TuneRequest& request,
             const Engine& engine, double seconds) {
  Json json = {{"schema", "kvant.tune/2"},
               {"model", engine.description()},
               {"fingerprint", engine.fingerprint()},
               {"budget", options.budget},
               {"context", request.context},
               {"bytes", result.bytes},
               {"bits_all", result.bits_all},
               {"bits_sealed", result.bits_sealed},
               {"constant_bytes", result.constants.bytes},
               {"constant_bits", result.constants.bits},
               {"predicted_kld", result.predicted},
               {"text", options.text_file.empty() ? "data/calibration" : options.text_file},
               {"length", options.length},
               {"tuning_contexts", request.tuning.size()},
               {"tuning_kld_as_calibrated", result.trials.front().divergence},
               {"tuning_kld", best_trial(result.trials).divergence},
               {"trials", result.trials.size()},
               {"bend",
                {{"keys", result.bend.keys},
                 {"depth", result.bend.depth},
                 {"contrast", result.bend.contrast},
                 {"curve", result.bend.curve}}},
               {"held_out_contexts", result.chunks},
               {"seconds", seconds}};
  for (const TuneRow& row : result.held_out) {
    Json figure = figures(row.metrics);
    figure["recipe"] = row.name;
    json["held_out"].push_back(std::move(figure));
  }
  return json;
}

void print_summary(const TuneResult& result, const TuneOptions& options, const TuneRequest& request,
                   double seconds) {
  fmt::print("{:.3f} bits per value, {} at {} tokens; {} allocations tried\n", result.bits_all,
             readable_bytes(static_cast<double>(result.bytes)), request.context, result.trials.size());
  fmt::print(
      "KL divergence: {:.3g} predicted from single heads; {:.3g} on the tuning text, {:.3g} with the "
      "calibrated allocation\n",
      result.predicted, best_trial(result.trials).divergence, result.trials.front().divergence);
  fmt::print("Held-out text, {} contexts of {} tokens:\n{:>10} {:>21} {:>9} {:>8}  {}\n", result.chunks,
             options.length, "mean KLD", "95 % interval", "99.9 %", "top-1", "cache");
  for (const TuneRow& row : result.held_out) {
    const MetricsSummary& m = row.metrics;
    fmt::print("{:10.3g} {:>21} {:9.3g} {:6.2f} %  {}\n", m.kld_mean,
               fmt::format("{:.3g} - {:.3g}", m.kld_lo, m.kld_hi), m.kld_p999, 100 * m.top1, row.name);
  }
  fmt::print("Written: {} (use it with --kv {})\nTime: {}\n", options.output, options.output,
             readable_duration(seconds));
}

Status run_tune(const TuneOptions& options) {
  const auto budget = parse_size_budget(options.budget);
  if (!budget.ok()) return budget.error();
  const auto base = base_recipe(options.common);
  if (!base.ok()) return base.error();
  if (!options.output.ends_with(".json"))
    return error("-o {}: the name of a recipe file must end in .json", options.output);
  KVANT_RETURN_IF_ERROR(check_writable(options.output));
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  const auto session = Session::open(options.common, weight_mode(options.weights), options.length);
  if (!session.ok()) return session.error();
  Engine& engine = session->engine();
  auto text = read_text(options, engine.tokenizer());
  if (!text.ok()) return text.error();

  const int trained = engine.geometry().trained_context;
  const int context = budget->context > 0 ? budget->context : std::clamp(trained, kPageTokens, kUsualContext);
  const std::int64_t max_bytes = budget->bytes_at(engine.geometry(), context);
  KVANT_RETURN_IF_ERROR(check_size_budget(*base, engine.geometry(), max_bytes, context));
  const auto start = std::chrono::steady_clock::now();
  auto constants = session->learned_constants(*base);
  if (!constants.ok()) return constants.error();
  const Interruption interruption;
  TuneRequest request;
  request.base = *base;
  request.constants = std::move(constants).value();
  request.context = context;
  request.max_bytes = max_bytes;
  request.tuning = std::move(text->tuning);
  request.held_out = std::move(text->held_out);
  request.held_out_context = options.length;
  request.trials = options.trials;
  request.n_threads = options.common.n_threads;
  request.state_path = options.output + ".partial";
  request.stop = interruption.flag();
  auto result = tune(engine, session->backend(), request);
  if (!result.ok()) return result.error();

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result->recipe.name = std::filesystem::path(options.output).stem().string();
  result->recipe.summary = fmt::format("tuned to {} for {}", engine.description(), options.budget);
  Json recipe = Json::parse(to_json(result->recipe));
  recipe["figures"] = to_json(*result, options, request, engine, seconds);
  const std::string file = recipe.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  KVANT_RETURN_IF_ERROR(write_whole_file(options.output, file));
  print_summary(*result, options, request, seconds);
  if (options.common.json.empty()) return {};
  return write_whole_file(options.common.json, recipe["figures"].dump(2) + "\n");
}

}  // namespace

Command add_tune_command(CLI::App& program) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command =
      program.add_subcommand("tune", "find the best formats for a model within a size budget");
  add_model_options(*command, options->common, /*many_recipes=*/false);
  command->get_option("--kv")->description(
      "recipe to start from, with a ladder and a budget (default: kvant-3bit)");
  add_device_option(*command, options->common);
  // tune chooses the formats and the plan itself, so options about them do not apply.
  for (const char* of_plans : {"--cache-type-k", "--cache-type-v", "--strict", "--verbose"})
    command->remove_option(command->get_option(of_plans));
  add_weights_option(*command, options->weights);
  command
      ->add_option("--budget", options->budget,
                   "bits per value, such as 2.5bit (at the trained context, at most 8192 tokens) or "
                   "2.5bit@2k; or bytes per sequence, such as 64MiB@16k")
      ->required();
  command->add_option("-o,--output", options->output, "recipe file to write (.json), for use with --kv")
      ->required();
  command->add_option("-f,--file,--text", options->text_file,
                      "text to tune and evaluate on (default: the text that ships with kvant)");
  command->add_option("-c,--ctx-size", options->length, "tokens per measured context")
      ->check(CLI::Range(256, 1 << 17))
      ->capture_default_str();
  command
      ->add_option("--contexts", options->contexts,
                   "number of contexts to tune on; the result is evaluated on as many others")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "number of allocations to try")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  return {command, [options, command]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            return run_tune(*options);
          }};
}

}  // namespace kvant
