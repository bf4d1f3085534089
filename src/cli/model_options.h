// Options that several commands have, under one name and with one meaning.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

struct ModelOptions {
  std::string model;
  std::vector<std::string> kv;  // recipes as typed; several values, or several in one
  std::string k_side, v_side;   // -ctk, -ctv
  std::string calibration;      // file; empty: the user's cache folder
  std::string json;             // empty: none
  std::string backend = "cpu";  // attention/attention.h
  std::string device = "cpu";   // model/compute_device.h
  int n_threads = 1;
  bool verbose = false;
  bool strict = false;
};

// Adds --kv, -ctk, -ctv, --json, -t, -v and --strict, and ends the help with all recipes and formats.
// many_recipes: --kv takes a list.
void add_recipe_options(CLI::App& command, ModelOptions& options, bool many_recipes);
// Adds -m, those, and --calibration.
void add_model_options(CLI::App& command, ModelOptions& options, bool many_recipes);

// Adds --device.
void add_device_option(CLI::App& command, ModelOptions& options);
// With a device that isn't the CPU: an error that names `what`, which doesn't run there.
Status check_on_cpu(const ModelOptions& options, const std::string& what);

// The default model, where the command line names none; stderr says which.
Status choose_model(ModelOptions& options);

// The recipe of a command that runs one; bf16 by default.
Result<Recipe> one_recipe(const ModelOptions& options);
// Whether the command line names any recipe.
bool names_recipes(const ModelOptions& options);
// The rows of a command that compares several, unparsed: recipes and "llama.cpp:TYPE".
std::vector<std::string> row_names(const ModelOptions& options);

// The whole file at `path`. Errors: it cannot be read, or is empty.
Result<std::string> read_text_file(const std::string& path);

// Prints one line to the standard error stream.
void warn(const std::string& message);

}  // namespace kvant
