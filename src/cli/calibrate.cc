// kvant calibrate learns the constants that recipes need to know about a model, and writes them to a file.
#include "calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_file.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "base/warn.h"
#include "calibrate/adapter_data.h"
#include "calibrate/default_text.h"
#include "calibrate/first_use.h"
#include "calibrate/needs.h"
#include "calibrate/training_summary.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/shell_word.h"
#include "recipe/uncalibrated_recipe.h"
#include "task/calibration_files.h"
#include "task/session.h"

namespace kvant {
namespace {

// The command learns the constants of this recipe if the user names none.
constexpr const char* kUsualRecipe = "kvant-4bit";

struct CalibrateOptions {
  ModelOptions common;
  // An empty name selects the text that ships with kvant.
  std::string text_file;
  // An empty name selects the user's cache folder.
  std::string output;
  CalibrationSettings settings;
  bool full = false;
};

// Sets the size of a full calibration. The papers calibrate with 256 samples of 512 tokens.
void set_full(CalibrationSettings& settings) {
  settings.samples = 256;
  settings.rows = 4 * CalibrationSettings{}.rows;
}

Result<std::vector<Recipe>> recipes_to_calibrate(const ModelOptions& options, const Geometry& geometry) {
  std::vector<Recipe> recipes;
  for (const std::string& name : row_names(options)) {
    auto recipe = parse_recipe(name);
    if (!recipe.ok()) return recipe.error();
    if (needs_calibration(*recipe, geometry)) {
      recipes.push_back(std::move(*recipe));
    } else {
      warn(fmt::format("the recipe {} needs no calibration", label(*recipe)));
    }
  }
  if (recipes.empty()) return error("nothing to calibrate: give a recipe that needs calibration with --kv");
  return recipes;
}

// Returns the files to write. If --output is given, all recipes share its file. Otherwise each recipe has the
// file in which commands look for its calibration.
std::vector<std::string> output_files(const CalibrateOptions& options, const std::vector<Recipe>& recipes,
                                      const Engine& engine) {
  if (!options.output.empty()) return {options.output};
  std::vector<std::string> files;
  files.reserve(recipes.size());
  for (const Recipe& recipe : recipes) {
    files.push_back(first_use_path(calibration_folder(), recipe, engine.geometry(), engine.fingerprint()));
  }
  return files;
}

Status check_outputs(const CalibrateOptions& options, const std::vector<std::string>& files) {
  if (options.output.empty() && calibration_folder().empty())
    return error(
        "neither $XDG_CACHE_HOME nor $HOME is set, so there is no folder for calibrations: give a file with "
        "--output");
  std::error_code failure;
  if (options.output.empty()) std::filesystem::create_directories(calibration_folder(), failure);
  if (failure) return error("cannot create the folder '{}': {}", calibration_folder(), failure.message());
  for (const std::string& file : files) KVANT_RETURN_IF_ERROR(check_writable(file));
  return {};
}

std::string error_text(double error) {
  return std::isnan(error) ? "-" : fmt::format("{:.5f}", error);
}

void print_summary(const Calibration& calibration, const std::vector<std::string>& files, double seconds) {
  const std::vector<TrainingGain> gains = training_gains(calibration.constants);
  if (!gains.empty()) {
    fmt::print(
        "Training, mean over heads (codebooks: relative squared error; adapters: divergence of attention "
        "weights):\n");
    fmt::print("{:>10} {:>10} {:>9}  constant\n", "before", "after", "improved");
  }
  for (const TrainingGain& gain : gains)
    fmt::print("{:10.5f} {:10.5f} {:>9}  {} {}\n", gain.before, gain.after,
               fmt::format("{}/{}", gain.improved, gain.heads), side_name(gain.side), gain.name);
  fmt::print("Relative squared errors on {} held-out passages:\n", calibration.settings.passages);
  fmt::print("{:>10} {:>10} {:>10}  recipe\n", "K", "V", "output");
  for (const RecipeQuality& q : calibration.quality) {
    fmt::print("{:>10} {:>10} {:>10}  {}\n", error_text(q.key_error), error_text(q.value_error),
               error_text(q.output_error), q.recipe);
  }
  if (std::ranges::any_of(calibration.quality, [](const auto& q) { return std::isnan(q.key_error); })) {
    fmt::print(
        "Passages of {} tokens have no whole page of {}, so no error was measured: give a larger --length\n",
        calibration.settings.length, kPageTokens);
  }
  for (const std::string& file : files) fmt::print("Written: {}\n", file);
  fmt::print("Time: {}\n", readable_duration(seconds));
}

// Prints the command that uses the calibration, and what becomes of sessions that began without it.
void print_next_step(const CalibrateOptions& options, const Recipe& recipe, const Geometry& geometry) {
  fmt::print("Done. Now run: kvant run -m {} --kv {}{} -cnv\n", shell_word(options.common.model),
             shell_word(label(recipe)),
             options.output.empty() ? "" : " --calibration " + shell_word(options.output));
  const auto earlier = uncalibrated_recipe(recipe, geometry);
  if (requires_calibration(recipe, geometry) || !earlier.ok()) return;
  fmt::print(
      "Sessions that began without the calibration continue with {}: kvant run does so by itself, and kvant "
      "serve needs --kv {}\n",
      label(*earlier), shell_word(label(*earlier)));
}

std::string to_json(const Calibration& calibration, const std::vector<std::string>& files, double seconds) {
  nlohmann::json json;
  json["model"] = calibration.model;
  json["fingerprint"] = calibration.fingerprint;
  json["files"] = files;
  json["seconds"] = seconds;
  for (const RecipeQuality& q : calibration.quality) {
    json["recipes"].push_back({{"recipe", q.recipe},
                               {"key_error", q.key_error},
                               {"value_error", q.value_error},
                               {"output_error", q.output_error}});
  }
  for (const TrainingGain& gain : training_gains(calibration.constants)) {
    json["training"].push_back({{"side", side_name(gain.side)},
                                {"constant", gain.name},
                                {"heads", gain.heads},
                                {"improved", gain.improved},
                                {"before", gain.before},
                                {"after", gain.after}});
  }
  return json.dump(2) + "\n";
}

Result<std::string> calibration_text(const CalibrateOptions& options) {
  if (options.settings.self) return std::string();
  if (options.text_file.empty()) return default_calibration_text();
  return read_text_file(options.text_file);
}

// Returns the kind of a device, such as "cuda" for "cuda:1".
std::string kind_of(const std::string& device) {
  return device.substr(0, device.find(':'));
}

Status run_calibrate(const CalibrateOptions& options) {
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  auto text = calibration_text(options);
  if (!text.ok()) return text.error();
  SessionOptions on_cpu = options.common;
  on_cpu.device = "cpu";
  on_cpu.kv_offload = true;
  std::optional<Session> reader;
  if (options.common.device != on_cpu.device) {
    auto opened = Session::open(options.common, WeightMode::as_stored, 0);
    if (!opened.ok()) return opened.error();
    reader.emplace(std::move(opened).value());
  }
  const auto session = Session::open(on_cpu, WeightMode::as_stored, 0);
  if (!session.ok()) return session.error();
  Engine& engine = session->engine();
  auto recipes = recipes_to_calibrate(options.common, engine.geometry());
  if (!recipes.ok()) return recipes.error();
  const CalibrationMethod method{.backend = options.common.backend,
                                 .device = reader ? kind_of(options.common.device) : on_cpu.device};
  if (options.output.empty() && method.backend != CalibrationMethod{}.backend) {
    return error(
        "other commands find only calibrations made with --backend {}: leave out --backend {}, or give a "
        "file with -o",
        CalibrationMethod{}.backend, options.common.backend);
  }
  const std::vector<std::string> files = output_files(options, *recipes, engine);
  KVANT_RETURN_IF_ERROR(check_outputs(options, files));

  const auto start = std::chrono::steady_clock::now();
  const Interruption interruption;
  const CalibrationRequest request{
      *recipes,
      std::move(*text),
      options.settings,
      options.common.n_threads,
      files.front(),
      interruption.flag(),
      method,
      reader ? SampleReader{&reader->engine(), &reader->backend(), reader->device()} : SampleReader{}};
  const auto made = calibrate(engine, session->backend(), request);
  if (!made.ok()) return made.error();
  for (const std::string& file : files) KVANT_RETURN_IF_ERROR(write_calibration(*made, file));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print_summary(*made, files, seconds);
  print_next_step(options, recipes->front(), engine.geometry());
  if (options.common.json.empty()) return {};
  return write_whole_file(options.common.json, to_json(*made, files, seconds));
}

}  // namespace

Command add_calibrate_command(CLI::App& program) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command =
      program.add_subcommand("calibrate", "learn the constants that recipes need for a model");
  options->common.backend = "reference";
  add_model_options(*command, options->common, /*many_recipes=*/true);
  set_default_recipes(*command, kUsualRecipe);
  add_device_option(*command, options->common);
  for (const char* of_plans :
       // --calibration, --strict and --verbose need a plan, and calibration runs before a plan exists.
       {"--calibration", "--strict", "--verbose"})
    command->remove_option(command->get_option(of_plans));
  CalibrationSettings& settings = options->settings;
  auto* text = command->add_option("-f,--file,--text", options->text_file,
                                   "text to learn from (default: the text that ships with kvant)");
  command->add_option(
      "-o,--output", options->output,
      "calibration file to write (default: a file in the cache folder, which other commands find)");
  command->add_option("--samples", settings.samples, "number of samples from the text")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--length", settings.length, "tokens per sample")
      ->check(CLI::Range(16, 1 << 16))
      ->capture_default_str();
  command
      ->add_option(
          "--contexts", settings.contexts,
          "for recipes with a correction: longer samples on which adapters are trained; every fourth "
          "of them judges the adapters")
      ->check(CLI::Range(2, 1 << 16))
      ->capture_default_str();
  command->add_option("--context-length", settings.context_length, "tokens of such a sample")
      ->check(CLI::Range(kFirstCorrectedQuery + 1, 1 << 20))
      ->capture_default_str();
  command->add_option("--queries", settings.context_queries, "queries of such a sample that are used")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  auto* steps =
      command
          ->add_option("--steps", settings.adapter_steps,
                       "training steps of adapters; without this option, training also ends when the judging "
                       "samples show no more gain")
          ->check(CLI::Range(1, 1 << 20))
          ->capture_default_str();
  command->add_option("--batch", settings.adapter_batch, "queries of a training step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_flag("--full", options->full, "use 256 samples, as the papers do; slower");
  command->add_flag("--measure", settings.measure,
                    "for recipes with a budget: run the model once for each layer, head and side, instead of "
                    "estimating all in one pass; much slower");
  command->add_flag("--self", settings.self, "learn from text that the model writes itself")->excludes(text);
  command->add_option("--seed", settings.seed, "seed for the choice of samples and initial centroids")
      ->capture_default_str();
  return {command, [options, command, steps]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            if (!names_recipes(options->common)) options->common.kv = {kUsualRecipe};
            options->settings.adapters_end_early = steps->count() == 0;
            if (options->full) set_full(options->settings);
            return run_calibrate(*options);
          }};
}

}  // namespace kvant
