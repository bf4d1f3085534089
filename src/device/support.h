// Implements what kvant_supports has in common for all devices.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/caller_structs.h"
#include "kvant/kvant.h"

namespace kvant::device {

inline constexpr kvant_feature kFeatures[] = {KVANT_SEALING,    KVANT_SEALED_ROWS,     KVANT_PROTECTION,
                                              KVANT_CORRECTION, KVANT_SLIDING_WINDOW,  KVANT_SINK_LOGITS,
                                              KVANT_EVICTION,   KVANT_INTEGER_PROMPTS, KVANT_HALF_PROMPTS};

constexpr std::uint32_t all_features() {
  std::uint32_t all = 0;
  for (const kvant_feature feature : kFeatures) all |= feature;
  return all;
}

// Returns why a plan is broken, or null.
inline Reason fault_of_plan(const kvant_plan& plan) {
  return first_failing(
      {{plan.shape != nullptr, "plan.shape is null"},
       {plan.reserved == 0, "plan.reserved must be 0"},
       {(plan.features & ~all_features()) == 0, "plan.features has bits that kvant.h does not name"}});
}

// Returns why kvant.h denies a shape the feature on every device, or null.
inline Reason never(kvant_feature feature, const kvant_decode_shape& shape) {
  switch (feature) {
    case KVANT_CORRECTION:
      return first_failing(
          {{shape.score_softcap == 0,
            "KVANT_CORRECTION: a correction is not there for scores that are capped"},
           {shape.max_queries <= 1, "KVANT_CORRECTION: a correction is for one query of a sequence"}});
    case KVANT_INTEGER_PROMPTS:
      return first_failing(
          {{shape.score_softcap == 0 && shape.corrected == 0,
            "KVANT_INTEGER_PROMPTS: prompts in integers have neither soft-capped scores nor a correction"}});
    default:
      return nullptr;
  }
}

// Returns why kvant.h excludes the plan's features together on every device, or null.
inline Reason never_together(const kvant_plan& plan) {
  const bool in_integers = (plan.features & KVANT_INTEGER_PROMPTS) != 0;
  return in_integers && (plan.features & (KVANT_SINK_LOGITS | KVANT_CORRECTION)) != 0
             ? "KVANT_INTEGER_PROMPTS: prompts in integers have neither sink logits nor a correction"
             : nullptr;
}

// Fills in limits.features, and returns why the device does not serve the plan, or null. of_shape says why
// the shape alone is not served, or is null. reason_without(feature) returns why this device can't give the
// plan's shape a feature, or null.
template <class ReasonWithout>
Reason judge_plan(const kvant_plan& plan, const kvant_decode_shape& shape, Reason of_shape,
                  const ReasonWithout& reason_without, kvant_limits& limits) {
  Reason reason = of_shape;
  if (reason == nullptr && plan.tail_format != nullptr && std::strcmp(plan.tail_format, "bf16") != 0)
    reason = "plan.tail_format must be bf16: unquantized tokens have no other format";
  limits.features = 0;
  for (const kvant_feature feature : kFeatures) {
    Reason without = of_shape != nullptr ? of_shape : never(feature, shape);
    if (without == nullptr) without = reason_without(feature);
    if (without == nullptr) limits.features |= feature;
    if (reason == nullptr && (plan.features & feature) != 0) reason = without;
  }
  return reason == nullptr ? never_together(plan) : reason;
}

inline constexpr Reason kNoEviction =
    "KVANT_EVICTION: a sealed page keeps its tokens, of which masks leave some out; the engine's own CPU "
    "backend evicts";

}  // namespace kvant::device
