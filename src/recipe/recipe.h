// Recipe: a complete KV-cache configuration as data. Printable, parseable, comparable.
//
// String form: NAME[,key=value]... or key=value[,key=value]..., for example
//   kivi-2bit,window=0,sink=4        k=hadamard:ch4g128,v=tok4g128,sink=4        q8_0/tok4g128
// NAME is a built-in recipe, a JSON file, or SIDE or SIDE/SIDE (K and V). A side is written
// [transform+transform...:]format. Layers or heads can differ: `k@0-3=bf16`, `v@18.1=tok4g128` (layer 18,
// KV head 1). JSON form: the same keys. docs/guide/recipes.md has the whole grammar.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"

namespace kvant {

enum class Tier : std::uint8_t { product, comparison };

// Describes how one side (K or V) is stored.
struct SideRecipe {
  std::vector<std::string> transforms;  // names of transforms.def, in the order in which they are applied
  std::string format;                   // a name that find_format knows
  bool operator==(const SideRecipe&) const = default;
};

// Sets another SideRecipe for some layers and heads.
struct SideOverride {
  Side side = Side::key;
  int first_layer = 0;
  int last_layer = 0;  // inclusive
  int kv_head = -1;    // -1: all
  SideRecipe recipe;
  bool operator==(const SideOverride&) const = default;
};

// The exponential of the softmax (design section 5, TurboAttention).
enum class Softmax : std::uint8_t {
  exact,
  sas,        // table and cubic polynomial; rescaling with the exact exp
  sas_paper,  // SAS for the rescaling too, as Algorithm 1 prints it
};
// The arithmetic of q.K and P.V.
enum class Products : std::uint8_t { real, integer };
// The scale c of KVLinC's correction: e^-m (eq. 5) or 1 (Algorithm 1).
enum class Correction : std::uint8_t { none, absolute, relative };

// What encoders of K minimize, if they have the choice (Format::shapes_errors): the squared error, or its
// effect on the scores of the queries that calibration saw.
enum class Encode : std::uint8_t { plain, shaped };

// The range of layers first .. last, both included.
struct LayerRange {
  static constexpr int kToTheEnd = -1;
  int first = 0;
  int last = kToTheEnd;
  bool contains(int layer) const { return first <= layer && (last == kToTheEnd || layer <= last); }
  bool operator==(const LayerRange&) const = default;
};

// How the tokens of one prompt block attend to each other (docs/reference/methods.md, VQuant and
// SageAttention).
enum class PromptAttention : std::uint8_t {
  exact,   // over K and V as the tail holds them
  int8,    // VQuant's fused kernel: K and V in INT8 except for protected tokens, sink and window
  int4,    // the same in INT4
  sage,    // SageAttention: q.K in INT8 after subtracting K's mean
  flashq,  // TurboAttention's FlashQ (section 3): pages and rows are both in INT8
};

// Value of `prefill` for "the whole prompt" (the papers' "quantize after prefill").
inline constexpr int kPrefillAll = 0;

struct Recipe {
  std::string name;     // as given; empty for an anonymous recipe
  std::string summary;  // one line for the help
  Tier tier = Tier::product;
  SideRecipe k{{}, "bf16"};
  SideRecipe v{{}, "bf16"};
  std::vector<SideOverride> overrides;  // later overrides win
  int sink = 0;               // the first tokens of a sequence that stay unquantized: 0 .. kPageTokens
  int window = 0;             // the newest tokens that stay unquantized: a multiple of kPageTokens
  int prefill = kPageTokens;  // tokens of a prompt block: a multiple of kPageTokens, or kPrefillAll
  PromptAttention prompt = PromptAttention::exact;
  double protect = 0;  // rho: the share of tokens that stay unquantized (VQuant): 0 .. 0.5
  double evict = 0;    // the share of quantized tokens that are dropped, least attended first (H2O): 0 .. 1
  double mix = 0;      // the share of KV heads of each layer, lowest priority first, stored as mix_k, mix_v
  std::string mix_metric = "gap-std";  // the priority: a name of the calibrated metrics (TurboAttention)
  std::string mix_k, mix_v;            // formats; the transforms are those of k and v
  Softmax softmax = Softmax::exact;
  Products products = Products::real;  // integer: formats of integers only, q and P in INT8
  double skip = 0;                     // tau: V is not read if every weight is smaller (Sparse V)
  Correction correction = Correction::none;
  LayerRange correction_layers;  // layers with the correction (KVLinC, Table 6)
  double budget = 0;  // mean bits per quantized value; 0: k and v apply unchanged (bit_allocation.h)
  std::vector<std::string> ladder;  // the formats among which the budget chooses
  Encode encode = Encode::plain;
  // The row-wise format of unquantized tokens. Empty means bf16, or f16 if everything is f16.
  std::string tail;

  bool operator==(const Recipe&) const = default;
};

// Parses the string form; NAME may also be a JSON file (ends in ".json"). An error suggests the nearest known
// recipe, key, transform or format.
Result<Recipe> parse_recipe(const std::string& text);
// Returns the recipe for a pair of sides, as given by -ctk and -ctv: formats, with or without transforms.
// llama.cpp's names for its cache types (q8_0, q5_1, ...) stand for the similar formats.
Result<Recipe> plain_recipe(const std::string& k_side, const std::string& v_side);
// Splits a list of recipes ("bf16,kivi-2bit,window=0;k=bf16,v=fp8") into one text each, unparsed. An item
// without '=' starts a new recipe, and so does anything after ';'. Empty texts are dropped.
std::vector<std::string> split_recipe_list(const std::string& list);
// Returns the string form without the name: parse_recipe(to_string(r)) equals r except for name, summary and
// tier.
std::string to_string(const Recipe& recipe);
// Returns the recipe's name for messages and tables, or its string form if it has no name.
std::string label(const Recipe& recipe);
// Convert to the JSON form and back. recipe_from_json(to_json(r)) equals r.
std::string to_json(const Recipe& recipe);
Result<Recipe> recipe_from_json(const std::string& json);

// Returns the built-in recipes, in the order of the help.
std::span<const Recipe> builtin_recipes();

}  // namespace kvant
