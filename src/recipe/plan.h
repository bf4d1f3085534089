// A Plan is a recipe resolved for one model: the formats, transforms and rules of each layer, KV head and
// side. The cache and the attention code read plans and never interpret a recipe themselves.
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

// Describes how one side of one (layer, KV head) is stored.
struct SidePlan {
  const Format* sealed = nullptr;  // format of sealed pages
  // Owns the format to which `sealed` points if the codes have an order of their own (PageOrder::lanes); else
  // null.
  std::shared_ptr<const Format> ordered;
  std::vector<std::string> transform_names;
  Transform transform;
  PageContext context;
};

struct HeadPlan {
  SidePlan k, v;
  // The flag is true if KVLinC's correction covers the layer and calibration left the correction on for the
  // head.
  bool corrected = false;
  const SidePlan& side(Side s) const { return s == Side::key ? k : v; }
};

// Specifies which tokens a layer keeps unquantized or drops, after the rules for sliding windows.
struct LayerPlan {
  int sink = 0;
  int window = 0;  // number of tokens
  // Holds the share of protected tokens, VQuant's rho.
  double protect = 0;
  // Holds the share of sealed tokens that are dropped.
  double evict = 0;
  int sliding_window = 0;  // tokens; 0 means full attention
  // The flag is true if scores need the offset of K's transform, because a soft cap is not shift-invariant.
  bool needs_offset = false;
  // Returns whether the attention that tokens receive decides which tokens are kept.
  bool needs_scores() const { return protect > 0 || (evict > 0 && evict < 1); }
};

// Names the order of the codes in sealed pages. `canonical` is the order of the format's specification.
// `lanes` is an order for SIMD lanes (code_order.h), for formats that have one. All backends read both
// orders, and each backend states which order it reads faster.
enum class PageOrder : std::uint8_t { canonical, lanes };

// States whether a plan uses calibrated constants.
enum class CalibrationState : std::uint8_t {
  // The recipe uses no constants of the model.
  not_needed,
  // All constants that the recipe can use exist.
  calibrated,
  // Constants are missing, so the uncalibrated recipe replaces the recipe that was asked for.
  missing,
};
// Returns "not needed", "calibrated" or "not calibrated".
const char* calibration_state_name(CalibrationState state);

struct Plan {
  Geometry geometry;
  // Holds the recipe as resolve() got it.
  Recipe asked;
  // Holds the recipe that is served: `asked`, or the uncalibrated recipe if calibration is missing.
  Recipe recipe;
  // Names the served recipe in messages, tables and JSON.
  std::string name;
  std::shared_ptr<const Constants> constants;  // may be null
  // Points to the row-wise format of unsealed and protected tokens.
  const Format* tail = nullptr;
  std::vector<LayerPlan> layers;  // [n_layers]
  // Holds the heads of all layers; Geometry::head_index gives the index.
  std::vector<HeadPlan> heads;
  PageOrder order = PageOrder::canonical;
  CalibrationState calibration = CalibrationState::not_needed;

  const HeadPlan& head(int layer, int kv_head) const { return heads[geometry.head_index(layer, kv_head)]; }
};

// Returns what the recipe gives one (layer, KV head, side). The result is the last override that names the
// place, or the side's default without such an override.
const SideRecipe& side_of(const Recipe& recipe, Side side, int layer, int kv_head);

// Returns an error if resolve() would refuse the recipe on the model with any constants that calibration can
// find.
Status check_recipe(const Recipe& recipe, const Geometry& geometry);

// Returns the format of unsealed tokens if the recipe of a resolved plan names none. The result is the format
// of the sealed pages if all of them have the same plain format, such as f16, and bf16 otherwise.
const Format* usual_tail(const Plan& plan);

// Resolves `recipe` for a model. If optional constants are missing, the plan follows uncalibrated_recipe().
// Returns an error with a clear sentence if the model cannot have the recipe.
Result<std::shared_ptr<const Plan>> resolve(const Recipe& recipe, const Geometry& geometry,
                                            std::shared_ptr<const Constants> constants,
                                            PageOrder order = PageOrder::canonical);

}  // namespace kvant
