// Options that several commands have, under one name and with one meaning.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "recipe/recipe.h"
#include "task/session.h"

namespace kvant {

struct ModelOptions : SessionOptions {
  std::vector<std::string> kv;  // recipes as typed; several values, or several in one
  std::string k_side, v_side;   // -ctk, -ctv
  std::string json;             // empty: none
};

// Adds --kv, -ctk, -ctv, --json, -t, -v and --strict, and ends the help with all recipes and formats.
// many_recipes: --kv takes a list.
void add_recipe_options(CLI::App& command, ModelOptions& options, bool many_recipes);
// Adds -m, those, and --calibration.
void add_model_options(CLI::App& command, ModelOptions& options, bool many_recipes);

// Adds --device, --gpu-layers and --no-kv-offload.
void add_device_option(CLI::App& command, ModelOptions& options);

// Adds --weights, of commands that judge caches.
inline constexpr const char* kUsualWeights = "f32";
void add_weights_option(CLI::App& command, std::string& weights);
WeightMode weight_mode(const std::string& weights);

// An error when --backend chooses what --device would not use.
Status check_backend(const CLI::App& command, const ModelOptions& options);

// Whether the file of --json, if there is one, can be written: to be asked before the work.
Status check_json(const ModelOptions& options);

// The default model, where the command line names none; stderr says which.
Status choose_model(ModelOptions& options);

// The recipe of a command that runs one; bf16 by default.
Result<Recipe> one_recipe(const ModelOptions& options);
// Whether the command line names any recipe.
bool names_recipes(const ModelOptions& options);
// The rows of a command that compares several, unparsed: recipes and "llama.cpp:TYPE".
std::vector<std::string> row_names(const ModelOptions& options);

}  // namespace kvant
