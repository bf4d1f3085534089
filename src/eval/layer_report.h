// Writes the results of evaluate_layers() as JSON and as tables for a terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/layer_eval.h"

namespace kvant {

// Returns
// {"schema":"kvant.layers/1","model":..,"context":..,"chunks":..,"reference":..,"results":[{"recipe":..,
// "mse":.., "relative":.., "layers":[{"mse":..,"relative":..,"heads":[{"mse":..,"relative":..}]}]}]}. Layers
// of a recipe that skips V also have "skip_rate" and "skipped_mass", the mean over the queries. Layers of a
// recipe that protects tokens also have "mass_unsealed" and "mass_protected".
nlohmann::ordered_json layers_to_json(const LayerResult& result, const std::string& model);

// Formats a table of layers and recipes for each measured quantity.
std::string layers_table(const LayerResult& result);

}  // namespace kvant
