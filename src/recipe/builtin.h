// Built-in recipes in the form in which the files of builtin/ define them.
#pragma once

#include <span>

#include "recipe/recipe.h"

namespace kvant {

struct BuiltinRecipe {
  const char* name;
  Tier tier;
  const char* text;     // the string form, without a name
  const char* summary;  // one line for the help
};

#define KVANT_METHOD(method) std::span<const BuiltinRecipe> method##_recipes();
#include "recipe/methods.def"
#undef KVANT_METHOD

// Pairs a cache type of llama.cpp with kvant's format of the same groups, bits and parameters.
struct LlamaCppType {
  const char* name;
  const char* format;
};
std::span<const LlamaCppType> llama_cpp_types();

}  // namespace kvant
