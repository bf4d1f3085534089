// Adds options that several commands share. Each option has one name and one meaning in all commands.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "recipe/recipe.h"
#include "task/session.h"

namespace kvant {

struct ModelOptions : SessionOptions {
  // Holds the values of --kv as typed. One value may hold several recipes, separated by commas.
  std::vector<std::string> kv;
  // k_side holds the value of -ctk, and v_side the value of -ctv.
  std::string k_side, v_side;
  // Names the file of --json. An empty name writes no JSON.
  std::string json;
};

// Returns the list of all built-in recipes, formats and cache types of llama.cpp.
std::string recipe_list();

// Adds --kv, -ctk, -ctv, --json, -t, --backend, -v and --strict. The help of the command then ends with a
// list of the product recipes. If many_recipes is true, --kv takes a list.
void add_recipe_options(CLI::App& command, ModelOptions& options, bool many_recipes);
// Makes the help of --kv name these recipes as the default, instead of bf16.
void set_default_recipes(CLI::App& command, const std::string& recipes);
// Adds -m, --calibration and the options of add_recipe_options.
void add_model_options(CLI::App& command, ModelOptions& options, bool many_recipes);

// Adds --device, --gpu-layers and --no-kv-offload.
void add_device_option(CLI::App& command, ModelOptions& options);

// Commands that judge caches use F32 weights unless --weights selects a different type, because quantized
// weights would add an error of their own.
inline constexpr const char* kUsualWeights = "f32";
void add_weights_option(CLI::App& command, std::string& weights);
WeightMode weight_mode(const std::string& weights);

// Returns an error if --device would ignore the given --backend.
Status check_backend(const CLI::App& command, const ModelOptions& options);

// Returns an error if the file of --json cannot be written. Commands call this check before their work, whose
// result would otherwise be lost.
Status check_json(const ModelOptions& options);

// Chooses the default model if the command line names no model, and prints the choice on stderr.
Status choose_model(ModelOptions& options);

// Returns the recipe of a command that runs only one recipe. Without --kv, -ctk and -ctv the recipe is bf16.
Result<Recipe> one_recipe(const ModelOptions& options);
// Returns whether the command line names any recipe.
bool names_recipes(const ModelOptions& options);
// Returns the rows of a command that compares caches. Each row is the text of a recipe, which the
// caller parses, or "llama.cpp:TYPE".
std::vector<std::string> row_names(const ModelOptions& options);

}  // namespace kvant
