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

// Fills in limits.features, and returns why the device does not serve the plan, or null. of_shape says why
// the shape alone is not served, or is null. reason_without(feature) returns why the plan's shape cannot have
// a feature, or null.
template <class ReasonWithout>
Reason judge_plan(const kvant_plan& plan, Reason of_shape, const ReasonWithout& reason_without,
                  kvant_limits& limits) {
  Reason reason = of_shape;
  if (reason == nullptr && plan.tail_format != nullptr && std::strcmp(plan.tail_format, "bf16") != 0)
    reason = "plan.tail_format must be bf16: unquantized tokens have no other format";
  limits.features = 0;
  for (const kvant_feature feature : kFeatures) {
    const Reason without = of_shape != nullptr ? of_shape : reason_without(feature);
    if (without == nullptr) limits.features |= feature;
    if (reason == nullptr && (plan.features & feature) != 0) reason = without;
  }
  return reason;
}

inline constexpr Reason kNoEviction =
    "KVANT_EVICTION: a sealed page keeps its tokens, of which masks leave some out; the engine's own CPU "
    "backend evicts";

}  // namespace kvant::device
