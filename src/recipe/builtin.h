// Declares the built-in recipes as texts. Each file of builtin/ returns the recipes of one method, and
// methods.def lists the files.
#pragma once

#include <span>

#include "recipe/recipe.h"

namespace kvant {

struct BuiltinRecipe {
  const char* name;
  Tier tier;
  // Holds the string form of the recipe without a name.
  const char* text;
  // Describes the recipe in one line for the help.
  const char* summary;
};

#define KVANT_METHOD(method) std::span<const BuiltinRecipe> method##_recipes();
#include "recipe/methods.def"
#undef KVANT_METHOD

// Pairs a cache type of llama.cpp with the format of kvant that has the same groups, bits and parameters.
struct LlamaCppType {
  const char* name;
  const char* format;
};
std::span<const LlamaCppType> llama_cpp_types();

}  // namespace kvant
