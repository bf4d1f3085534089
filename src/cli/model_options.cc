#include "cli/model_options.h"

#include <cstdio>

#include "base/json_file.h"
#include "base/machine_limits.h"
#include "base/warn.h"
#include "cli/default_model.h"
#include "device/cpu/kernels/byte_kernels.h"
#include "format/format.h"
#include "recipe/builtin.h"

namespace kvant {
namespace {

constexpr const char* kRecipeHeading =
    "Recipes for --kv (NAME[,key=value...], K/V such as ch4g128/tok4g128, or FILE.json):\n";

std::string line_of(const Recipe& recipe) {
  return fmt::format("  {:<22} {}\n", recipe.name, recipe.summary);
}

// Returns the list of product recipes that ends a command's help.
std::string recipe_help() {
  std::string text = kRecipeHeading;
  for (const Recipe& recipe : builtin_recipes())
    if (recipe.tier == Tier::product) text += line_of(recipe);
  return text + "kvant recipes lists all recipes and formats.\n";
}

std::string backend_help() {
  std::string text = "attention backend of the CPU: cpu";
  for (const char* set : cpu::kInstructionSets) text += fmt::format(", cpu/{}", set);
  return text + " or reference";
}

// An empty name usually comes from an unset variable.
std::string refuse_empty_name(const std::string& name) {
  return name.empty() ? "the name is empty: give a file, or leave out the option" : "";
}

}  // namespace

std::string recipe_list() {
  std::string text = kRecipeHeading;
  for (const Recipe& recipe : builtin_recipes()) text += line_of(recipe);
  text += "Formats:\n";
  for (const FormatFamily* family : format_families())
    text += fmt::format("  {:<22} {}\n", family->pattern, family->summary);
  text += "Names of llama.cpp's cache types, for similar formats:\n";
  for (const LlamaCppType& type : llama_cpp_types())
    text += fmt::format("  {:<22} {}\n", type.name, type.format);
  return text;
}

void add_recipe_options(CLI::App& command, ModelOptions& options, bool many_recipes) {
  options.n_threads = usable_threads();
  const char* kv_help = many_recipes
                            ? "KV-cache recipes A,B,C; key=value items modify the recipe before "
                              "them. ';' or another --kv starts a recipe without a name (default: bf16)"
                            : "KV-cache recipe (default: bf16)";
  auto* kv = command.add_option("--kv,--kv-cache-dtype", options.kv, kv_help)->allow_extra_args(false);
  if (!many_recipes) kv->expected(1);
  command
      .add_option("--cache-type-k,--ctk", options.k_side,
                  "format of K, such as ch4g128 (default: bf16; also -ctk)")
      ->excludes(kv);
  command
      .add_option("--cache-type-v,--ctv", options.v_side,
                  "format of V, such as tok4g128 (default: bf16; also -ctv)")
      ->excludes(kv);
  command.add_option("--json", options.json, "write the result to this file as JSON");
  command.add_option("-t,--threads", options.n_threads, "number of CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--backend", options.backend, backend_help())->capture_default_str();
  command.add_flag("-v,--verbose", options.verbose, "print the resolved plan: formats, kernels, bytes");
  command.add_flag("--strict", options.strict, "fail if the plan has a fallback");
  command.footer(recipe_help);
}

void set_default_recipes(CLI::App& command, const std::string& recipes) {
  CLI::Option& kv = *command.get_option("--kv");
  std::string text = kv.get_description();
  const std::string usual = "(default: bf16)";
  kv.description(text.replace(text.find(usual), usual.size(), "(default: " + recipes + ")"));
}

void add_model_options(CLI::App& command, ModelOptions& options, bool many_recipes) {
  command
      .add_option("-m,--model", options.model,
                  "model file in GGUF format (default: the model that `make setup` installs)")
      ->check(refuse_empty_name);
  add_recipe_options(command, options, many_recipes);
  command.add_option(
      "--calibration", options.calibration,
      "file of constants written by kvant calibrate -o (default: what kvant calibrate wrote to the "
      "cache folder; only recipes that cannot do without are calibrated on first use)");
}

void add_device_option(CLI::App& command, ModelOptions& options) {
  command
      .add_option("--device", options.device,
                  "device that runs the model and stores its caches: cpu, cuda, or cuda:N for GPU N")
      ->capture_default_str();
  command
      .add_option("--gpu-layers,--ngl", options.device_layers,
                  "with --device cuda: number of layers with weights in GPU memory; the GPU reads the others "
                  "from host memory (also -ngl; default: all)")
      ->check(CLI::Range(0, 1 << 20));
  command.add_flag_callback(
      "--no-kv-offload,--nkvo", [&options] { options.kv_offload = false; },
      "with --device cuda: keep caches in host memory and compute attention on the CPU. Supports every "
      "recipe and head size, and caches larger than GPU memory (also -nkvo)");
}

void add_weights_option(CLI::App& command, std::string& weights) {
  command
      .add_option("--weights", weights,
                  "f32: dequantize the weights, so only the cache is quantized; stored: use the weights as "
                  "in the file")
      ->check(CLI::IsMember({"f32", "stored"}))
      ->capture_default_str();
}

WeightMode weight_mode(const std::string& weights) {
  return weights == kUsualWeights ? WeightMode::f32 : WeightMode::as_stored;
}

Status check_backend(const CLI::App& command, const ModelOptions& options) {
  const CLI::Option& backend = *command.get_option("--backend");
  if (options.device == "cpu" || !options.kv_offload || options.backend == backend.get_default_str())
    return {};
  return error(
      "--backend {} selects an attention backend of the CPU, but --device {} has its own kernels: leave out "
      "one of them, or add --no-kv-offload",
      options.backend, options.device);
}

Status check_json(const ModelOptions& options) {
  return options.json.empty() ? Status() : check_writable(options.json);
}

Status choose_model(ModelOptions& options) {
  if (!options.model.empty()) return {};
  auto model = default_model();
  if (!model.ok()) return model.error();
  options.model = std::move(model).value();
  say("kvant: model {}\n", options.model);
  return {};
}

Result<Recipe> one_recipe(const ModelOptions& options) {
  if (!options.k_side.empty() || !options.v_side.empty()) {
    return plain_recipe(options.k_side.empty() ? "bf16" : options.k_side,
                        options.v_side.empty() ? "bf16" : options.v_side);
  }
  return parse_recipe(options.kv.empty() ? "bf16" : options.kv.front());
}

bool names_recipes(const ModelOptions& options) {
  return !options.kv.empty() || !options.k_side.empty() || !options.v_side.empty();
}

std::vector<std::string> row_names(const ModelOptions& options) {
  std::vector<std::string> names;
  for (const std::string& list : options.kv) {
    for (std::string& name : split_recipe_list(list)) names.push_back(std::move(name));
  }
  if (!options.k_side.empty() || !options.v_side.empty()) {
    names.push_back((options.k_side.empty() ? "bf16" : options.k_side) + "/" +
                    (options.v_side.empty() ? "bf16" : options.v_side));
  }
  if (names.empty()) names.emplace_back("bf16");
  return names;
}

}  // namespace kvant
