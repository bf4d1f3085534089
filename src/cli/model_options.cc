#include "cli/model_options.h"

#include <cstdio>

#include "base/json_file.h"
#include "base/machine_limits.h"
#include "cli/default_model.h"
#include "format/format.h"

namespace kvant {
namespace {

// Returns the list of built-in recipes and formats that ends a command's help.
std::string recipe_help() {
  std::string text = "Recipes for --kv (NAME[,key=value...], K/V such as ch4g128/tok4g128, or FILE.json):\n";
  for (const Recipe& recipe : builtin_recipes())
    text += fmt::format("  {:<22} {}\n", recipe.name, recipe.summary);
  text += "Formats:\n";
  for (const FormatFamily* family : format_families()) {
    text += fmt::format("  {:<22} {}\n", family->pattern, family->summary);
  }
  return text;
}

}  // namespace

void add_recipe_options(CLI::App& command, ModelOptions& options, bool many_recipes) {
  options.n_threads = usable_threads();
  const char* kv_help =
      many_recipes ? "KV-cache recipes A,B,C; key=value items belong to the recipe before them. ';' or "
                     "another --kv starts a recipe that has no name"
                   : "KV-cache recipe (default: bf16)";
  auto* kv = command.add_option("--kv,--kv-cache-dtype", options.kv, kv_help)->allow_extra_args(false);
  if (!many_recipes) kv->expected(1);
  command
      .add_option("--cache-type-k,--ctk", options.k_side, "format of K alone, such as ch4g128 (also -ctk)")
      ->excludes(kv);
  command
      .add_option("--cache-type-v,--ctv", options.v_side, "format of V alone, such as tok4g128 (also -ctv)")
      ->excludes(kv);
  command.add_option("--json", options.json, "write the result to this file as JSON");
  command.add_option("-t,--threads", options.n_threads, "threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      .add_option("--backend", options.backend,
                  "attention: cpu, cpu/avx512, cpu/avxvnni, cpu/avx2, cpu/portable or reference")
      ->capture_default_str();
  command.add_flag("-v,--verbose", options.verbose, "print the resolved plan: formats, kernels, bytes");
  command.add_flag("--strict", options.strict, "a fall-back to something slower is an error");
  command.footer(recipe_help);
}

void add_model_options(CLI::App& command, ModelOptions& options, bool many_recipes) {
  command.add_option("-m,--model", options.model, "model: a GGUF file (default: the one of `make setup`)");
  add_recipe_options(command, options, many_recipes);
  command.add_option("--calibration", options.calibration,
                     "constants that kvant calibrate -o has written (default: made on first use)");
}

void add_device_option(CLI::App& command, ModelOptions& options) {
  command
      .add_option("--device", options.device,
                  "what runs the model and keeps its caches: cpu, cuda, or cuda:N for the GPU of that number")
      ->capture_default_str();
  command
      .add_option(
          "--gpu-layers,--ngl", options.device_layers,
          "with --device cuda: so many layers lie in the GPU's memory, the others in the host's, where "
          "the GPU reads them (also -ngl; default: all)")
      ->check(CLI::Range(0, 1 << 20));
  command.add_flag_callback(
      "--no-kv-offload,--nkvo", [&options] { options.kv_offload = false; },
      "with --device cuda: caches lie in the host's memory, and the CPU attends: any recipe, heads that the "
      "GPU has no kernels for, caches larger than its memory (also -nkvo)");
}

void add_weights_option(CLI::App& command, std::string& weights) {
  command
      .add_option("--weights", weights,
                  "f32: dequantized, so that only the cache is quantized; stored: as in the file")
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
      "--backend {} chooses how the CPU attends, and --device {} has kernels of its own: leave one of them "
      "out, or add --no-kv-offload",
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
  fmt::print(stderr, "kvant: model {}\n", options.model);
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
