// Describes a server to its clients: the model's names, the recipe and the sizes. Routes send these
// descriptions, and find the recipe for a model's name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serve/cache_grid.h"

namespace kvant {

// ServerInfo describes one recipe with which the model is served.
struct ServerInfo {
  std::string model;                      // the name for clients; a compared recipe's name contains the
                                          // recipe
  std::vector<std::string> aliases = {};  // other names that clients may use
  bool any_model = false;                 // this recipe also serves names that no recipe has
  std::string model_path;
  std::string description;  // such as "llama 135M Q4_1"
  std::string fingerprint;
  std::string recipe;
  double bits = 0;                   // bits per value of the cache at the full context
  std::string device;                // the device of the cache; empty if the cache is in host memory
  std::vector<std::string> kernels;  // the kernels that read quantized pages, each once
  CacheGrid grid;
  std::int64_t weight_bytes = 0;
  int n_vocab = 0, n_embd = 0;
};

// Returns the number of the recipe that clients call `model`. An empty name means the first recipe. Returns
// -1 if no recipe has the name.
int recipe_of(std::span<const ServerInfo> served, const std::string& model);
// Returns all names of a recipe, the recipe's own name first.
std::vector<std::string> names_of(const ServerInfo& info);
// Returns the model's name in responses to requests for `model`. An alias stays, and any other name becomes
// the recipe's own name.
std::string answering_name(const ServerInfo& info, const std::string& model);

}  // namespace kvant
