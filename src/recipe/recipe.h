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

// How one side (K or V) is stored.
struct SideRecipe {
  std::vector<std::string> transforms;  // names of transforms.def, in the order in which they are applied
  std::string format;                   // a name that find_format knows
  bool operator==(const SideRecipe&) const = default;
};

// Another SideRecipe for some layers and heads.
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
  sas,        // table and cubic polynomial; rescaling by the true exp
  sas_paper,  // SAS for the rescaling too, as Algorithm 1 prints it
};
// How q.K and P.V are multiplied.
enum class Products : std::uint8_t { real, integer };
// The scale c of KVLinC's correction: e^-m (eq. 5) or 1 (Algorithm 1).
enum class Correction : std::uint8_t { none, absolute, relative };

// What encoders of K keep small, where they have the choice (Format::shapes_errors): the squared error, or
// what it does to the scores of the queries that calibration saw.
enum class Encode : std::uint8_t { plain, shaped };

// Layers first .. last, both included.
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
  int8,    // VQuant's fused kernel: K and V in INT8 but for protected tokens, sink and window
  int4,    // the same in INT4
  sage,    // SageAttention: q.K in INT8 after K's mean is taken off
  flashq,  // TurboAttention's FlashQ (section 3): pages and rows alike in INT8
};

// The prompt block that stands for "the whole prompt" (the papers' "quantize after prefill").
inline constexpr int kPrefillAll = 0;

struct Recipe {
  std::string name;     // as given; empty for an anonymous one
  std::string summary;  // one line for the help
  Tier tier = Tier::product;
  SideRecipe k{{}, "bf16"};
  SideRecipe v{{}, "bf16"};
  std::vector<SideOverride> overrides;  // later ones win
  int sink = 0;               // the first tokens of a sequence that stay unquantized: 0 .. kPageTokens
  int window = 0;             // the newest tokens that stay unquantized: a multiple of kPageTokens
  int prefill = kPageTokens;  // tokens of a prompt block: a multiple of kPageTokens, or kPrefillAll
  PromptAttention prompt = PromptAttention::exact;
  double protect = 0;  // rho: the share of tokens that stay unquantized (VQuant): 0 .. 0.5
  double evict = 0;    // the share of sealed tokens that are dropped, least attended first (H2O): 0 .. 1
  double mix = 0;      // the share of KV heads of each layer, lowest priority first, stored as mix_k, mix_v
  std::string mix_metric = "gap-std";  // the priority: a name of the calibrated metrics (TurboAttention)
  std::string mix_k, mix_v;            // formats; the transforms are those of k and v
  Softmax softmax = Softmax::exact;
  Products products = Products::real;  // integer: formats of integers only, q and P in INT8
  double skip = 0;                     // tau: V is not read where every weight is smaller (Sparse V)
  Correction correction = Correction::none;
  LayerRange correction_layers;     // that the correction is for (KVLinC, Table 6)
  double budget = 0;                // mean bits of sealed elements; 0: k and v as they are (bit_allocation.h)
  std::vector<std::string> ladder;  // the formats among which the budget is spread
  Encode encode = Encode::plain;
  std::string tail;  // the row-wise format of unsealed tokens; empty: bf16 (f16 where all is f16)

  bool operator==(const Recipe&) const = default;
};

// Parses the string form; NAME may also be a JSON file (ends in ".json"). An error names the nearest
// known recipe, key, transform or format.
Result<Recipe> parse_recipe(const std::string& text);
// The recipe for a pair of sides, as -ctk and -ctv give it: formats, with or without transforms. llama.cpp's
// names for its cache types (q8_0, q5_1, ...) stand for the formats that are like them.
Result<Recipe> plain_recipe(const std::string& k_side, const std::string& v_side);
// Cuts a list of recipes ("bf16,kivi-2bit,window=0;k=bf16,v=fp8") into one text each, unparsed: an item
// without
// '=' starts a new recipe, and so does anything after ';'. Empty texts are dropped.
std::vector<std::string> split_recipe_list(const std::string& list);
// The string form without the name: parse_recipe(to_string(r)) equals r but for name, summary and tier.
std::string to_string(const Recipe& recipe);
// What to call the recipe in messages and tables: its name, or its string form if it has none.
std::string label(const Recipe& recipe);
// The JSON form, and back. recipe_from_json(to_json(r)) equals r.
std::string to_json(const Recipe& recipe);
Result<Recipe> recipe_from_json(const std::string& json);

// The built-in recipes, in the order of the help.
std::span<const Recipe> builtin_recipes();

}  // namespace kvant
