// Built-in recipes as the methods' files write them down.
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

// A cache type of llama.cpp, and kvant's format with the same groups, bits and parameters.
struct LlamaCppType {
  const char* name;
  const char* format;
};
std::span<const LlamaCppType> llama_cpp_types();

}  // namespace kvant
