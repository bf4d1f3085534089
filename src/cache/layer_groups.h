// The layers whose pages are opened, sealed and freed together, and so lie in one entry (page_layout.h).
// Their heads are alike: on a device their attention is divided once for all.
#pragma once

#include <vector>

#include "cache/page_ledger.h"
#include "recipe/plan.h"

namespace kvant {

struct LayersOfEntry {
  GroupRules rules;
  std::vector<int> layers;  // ascending
};

// In the order of their first layers, with the rules of a cache in host memory. A device has the same groups,
// with rules of its own (device_rules in device_layout.h).
std::vector<LayersOfEntry> layer_groups(const Plan& plan);

}  // namespace kvant
