// A Recipe is a complete configuration of a KV cache as data. Recipes can be printed, parsed and compared.
//
// The string form is NAME[,key=value]... or key=value[,key=value]..., for example
//   kivi-2bit,window=0,sink=4        k=hadamard:ch4g128,v=tok4g128,sink=4        q8_0/tok4g128
// NAME is a built-in recipe, a JSON file, SIDE, or SIDE/SIDE for K and V. A SIDE is written
// [transform+transform...:]format. Layers or heads can differ: `k@0-3=bf16`, `v@18.1=tok4g128` (layer 18, KV
// head 1). The JSON form has the same keys. docs/guide/recipes.md has the whole grammar.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/arithmetic.h"
#include "base/geometry.h"
#include "base/result.h"

namespace kvant {

enum class Tier : std::uint8_t { product, comparison };

// Describes how one side (K or V) is stored.
struct SideRecipe {
  // Lists names from transforms.def, in the order in which the transforms are applied.
  std::vector<std::string> transforms;
  // Holds the name of a format that find_format() finds.
  std::string format;
  bool operator==(const SideRecipe&) const = default;
};

// Replaces the SideRecipe of one side in some layers and heads. The first and the last N layers of a model
// are the range from -N to N - 1; resolve() puts layers of the model in place of such a range.
struct SideOverride {
  Side side = Side::key;
  int first_layer = 0;
  // The range of layers includes last_layer.
  int last_layer = 0;
  int kv_head = -1;  // -1 means all heads
  SideRecipe recipe;
  bool operator==(const SideOverride&) const = default;
};

// Chooses the scale c of KVLinC's correction. For `absolute` c is e^-m (equation 5), and for `relative` it is
// 1 (Algorithm 1).
enum class Correction : std::uint8_t { none, absolute, relative };

// Chooses what encoders of K minimize, for formats with both choices (Format::shapes_errors). `plain`
// minimizes the squared error. `shaped` minimizes the effect of the error on the scores of the queries that
// calibration saw. `sampled` does the same for the queries of a short text, which a model reads within
// seconds.
enum class Encode : std::uint8_t { plain, sampled, shaped };

// Selects the layers first .. last, both included.
struct LayerRange {
  static constexpr int kToTheEnd = -1;
  int first = 0;
  int last = kToTheEnd;
  bool contains(int layer) const { return first <= layer && (last == kToTheEnd || layer <= last); }
  bool operator==(const LayerRange&) const = default;
};

// Chooses how the tokens of one prompt block attend to each other (docs/reference/methods.md, VQuant and
// SageAttention).
enum class PromptAttention : std::uint8_t {
  // Attends to K and V as the tail holds them.
  exact,
  // Uses VQuant's fused kernel. K and V are INT8 except for protected tokens, the sink and the window.
  int8,
  // Uses VQuant's fused kernel with INT4 instead of INT8.
  int4,
  // Follows SageAttention. K is rounded to INT8 after its mean is subtracted, and q is rounded to INT8.
  sage,
  // Follows TurboAttention's FlashQ (section 3). Both the pages and the rows are INT8.
  flashq,
};

// prefill = kPrefillAll makes the whole prompt one block, as in papers that quantize after prefill.
inline constexpr int kPrefillAll = 0;

struct Recipe {
  // Holds the recipe's name as given, or an empty string for an anonymous recipe.
  std::string name;
  // Describes the recipe in one line for the help.
  std::string summary;
  Tier tier = Tier::product;
  SideRecipe k{{}, "bf16"};
  SideRecipe v{{}, "bf16"};
  // The last override that names a place applies to it.
  std::vector<SideOverride> overrides;
  // Counts the first tokens of a sequence that stay unquantized, from 0 to kPageTokens.
  int sink = 0;
  // Counts the newest tokens that stay unquantized. The number is a multiple of kPageTokens.
  int window = 0;
  // Counts the tokens of a prompt block. The number is a multiple of kPageTokens, or kPrefillAll.
  int prefill = kPageTokens;
  PromptAttention prompt = PromptAttention::exact;
  // Sets the share of tokens that VQuant's protection keeps unquantized (rho), from 0 to 0.5.
  double protect = 0;
  // Sets the share of quantized tokens that H2O's eviction drops, from 0 to 1. The least attended tokens are
  // dropped first.
  double evict = 0;
  // Sets the share of each layer's KV heads that are stored as mix_k and mix_v, from 0 to 1. The heads of the
  // lowest priority are chosen first.
  double mix = 0;
  // Names the calibrated metric that gives heads their priority (TurboAttention).
  std::string mix_metric = "gap-std";
  // mix_k and mix_v name the formats of the mixed heads. Mixed heads have the transforms of `k` and `v`.
  std::string mix_k, mix_v;
  Softmax softmax = Softmax::exact;
  // `integer` requires formats of integers, and rounds q and P to INT8.
  Products products = Products::real;
  // V of a tile is not read if all its softmax weights are smaller than `skip` (Sparse V's tau).
  double skip = 0;
  Correction correction = Correction::none;
  // Selects the layers with the correction (KVLinC, Table 6).
  LayerRange correction_layers;
  // Limits the mean bits per quantized value. A budget of 0 leaves k and v unchanged (bit_allocation.h).
  double budget = 0;
  // Lists the formats among which the budget chooses.
  std::vector<std::string> ladder;
  Encode encode = Encode::plain;
  // Names the row-wise format of unquantized tokens. An empty name selects usual_tail().
  std::string tail;

  bool operator==(const Recipe&) const = default;
};

// Parses the string form. A NAME that ends in ".json" is a file. The error for an unknown recipe, key,
// transform or format suggests the nearest names.
Result<Recipe> parse_recipe(const std::string& text);
// Returns the recipe for the values of -ctk and -ctv, which are formats with or without transforms.
// llama.cpp's names of cache types (q8_0, q5_1, ...) select the similar formats of kvant.
Result<Recipe> plain_recipe(const std::string& k_side, const std::string& v_side);
// Splits a list of recipes ("bf16,kivi-2bit,window=0;k=bf16,v=fp8") into one unparsed text per recipe. An
// item without '=' or after ';' starts a new recipe. Empty strings are dropped.
std::vector<std::string> split_recipe_list(const std::string& list);
// Returns the string form without the name. parse_recipe(to_string(r)) equals r except for name, summary and
// tier.
std::string to_string(const Recipe& recipe);
// Returns the recipe's name for messages and tables, or the string form if the recipe has no name.
std::string label(const Recipe& recipe);
// to_json() returns the JSON form of a recipe, and recipe_from_json() parses it. recipe_from_json(to_json(r))
// equals r.
std::string to_json(const Recipe& recipe);
Result<Recipe> recipe_from_json(const std::string& json);

// Returns the built-in recipes, in the order of the help.
std::span<const Recipe> builtin_recipes();

}  // namespace kvant
