// Plan: a recipe resolved for one model: what each layer, KV head and side really gets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "format/format.h"
#include "recipe/recipe.h"
#include "transform/constants.h"
#include "transform/transform.h"

namespace kvant {

// One side of one (layer, KV head).
struct SidePlan {
  const Format* sealed = nullptr;         // the format of sealed pages
  std::shared_ptr<const Format> ordered;  // what `sealed` points to, where codes have an order of their own
  std::vector<std::string> transform_names;
  Transform transform;
  PageContext context;
};

struct HeadPlan {
  SidePlan k, v;
  bool corrected = false;  // KVLinC's correction is for this layer, and calibration left it on for the head
  const SidePlan& side(Side s) const { return s == Side::key ? k : v; }
};

// What a layer keeps unquantized, after the rules for sliding windows.
struct LayerPlan {
  int sink = 0;
  int window = 0;             // tokens
  double protect = 0;         // rho
  double evict = 0;           // the share of sealed tokens that are dropped
  int sliding_window = 0;     // tokens; 0: full attention
  bool needs_offset = false;  // scores need the K transform's offset (a soft cap is not shift-invariant)
  // Whether tokens are chosen by the attention that they draw.
  bool needs_scores() const { return protect > 0 || (evict > 0 && evict < 1); }
};

// The order of the codes in sealed pages: as their formats have them, or for vector registers (code_order.h)
// where they have such an order. Backends say which one they read fast; all read both.
enum class PageOrder : std::uint8_t { canonical, lanes };

// What calibration has to do with a plan.
enum class CalibrationState : std::uint8_t {
  not_needed,  // the recipe uses no constants of the model
  calibrated,  // all that it can use is there
  missing,     // the uncalibrated recipe serves in the place of the one that was asked for
};
const char* calibration_state_name(CalibrationState state);  // "not needed", "calibrated", "not calibrated"

struct Plan {
  Geometry geometry;
  Recipe asked;      // as resolve() got it
  Recipe recipe;     // that is served: `asked`, or the uncalibrated one where calibration is missing
  std::string name;  // of the recipe that is served, for messages, tables and JSON
  std::shared_ptr<const Constants> constants;  // may be null
  const Format* tail = nullptr;                // row-wise format of unsealed and protected tokens
  std::vector<LayerPlan> layers;               // [n_layers]
  std::vector<HeadPlan> heads;                 // of all layers, by Geometry::head_index
  PageOrder order = PageOrder::canonical;
  CalibrationState calibration = CalibrationState::not_needed;

  const HeadPlan& head(int layer, int kv_head) const { return heads[geometry.head_index(layer, kv_head)]; }
};

// What one (layer, KV head, side) gets: the last override that names it, or the side's default.
const SideRecipe& side_of(const Recipe& recipe, Side side, int layer, int kv_head);

// Whether the model can have the recipe, as far as that can be told without constants: what resolve() would
// refuse whatever calibration finds.
Status check_recipe(const Recipe& recipe, const Geometry& geometry);

// The format of unsealed tokens where the recipe of a resolved plan names none: a cache of nothing but one
// plain format keeps them in it too, so that f16 is f16 throughout; others in bf16.
const Format* usual_tail(const Plan& plan);

// Resolves `recipe` for a model. Where calibration has not made the constants that the recipe works without,
// the plan is that of uncalibrated_recipe(). Fails with a clear message where the model cannot have it.
Result<std::shared_ptr<const Plan>> resolve(const Recipe& recipe, const Geometry& geometry,
                                            std::shared_ptr<const Constants> constants,
                                            PageOrder order = PageOrder::canonical);

}  // namespace kvant
