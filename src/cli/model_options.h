// Options that several commands share, with the same name and meaning in each.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "recipe/recipe.h"
#include "task/session.h"

namespace kvant {

struct ModelOptions : SessionOptions {
  std::vector<std::string> kv;  // recipes as typed; one value may hold several, separated by commas
  std::string k_side, v_side;   // -ctk, -ctv
  std::string json;             // empty: writes no JSON
};

// Adds --kv, -ctk, -ctv, --json, -t, -v and --strict, and lists all recipes and formats at the end of the
// help. With many_recipes, --kv takes a list.
void add_recipe_options(CLI::App& command, ModelOptions& options, bool many_recipes);
// Adds -m, --calibration and the options of add_recipe_options.
void add_model_options(CLI::App& command, ModelOptions& options, bool many_recipes);

// Adds --device, --gpu-layers and --no-kv-offload.
void add_device_option(CLI::App& command, ModelOptions& options);

// Adds --weights to commands that judge caches.
inline constexpr const char* kUsualWeights = "f32";
void add_weights_option(CLI::App& command, std::string& weights);
WeightMode weight_mode(const std::string& weights);

// Refuses a --backend that --device would not use.
Status check_backend(const CLI::App& command, const ModelOptions& options);

// Checks that the file of --json can be written. Call it before the work, whose result would be lost
// otherwise.
Status check_json(const ModelOptions& options);

// Chooses the default model if the command line names none, and says so on stderr.
Status choose_model(ModelOptions& options);

// Returns the recipe for a command that runs only one; bf16 by default.
Result<Recipe> one_recipe(const ModelOptions& options);
// Whether the command line names any recipe.
bool names_recipes(const ModelOptions& options);
// Returns the rows of a comparing command, unparsed: recipes and "llama.cpp:TYPE".
std::vector<std::string> row_names(const ModelOptions& options);

}  // namespace kvant
