// Groups the layers whose pages are opened, sealed and freed together and so lie in one entry
// (page_layout.h). The heads of a group are alike, so a device divides the attention of all its layers once.
#pragma once

#include <vector>

#include "cache/page_ledger.h"
#include "recipe/plan.h"

namespace kvant {

struct LayersOfEntry {
  GroupRules rules;
  std::vector<int> layers;  // in ascending order
};

// Returns the groups in the order of their first layers, with the rules of a cache in host memory. A device
// has equal groups with rules of its own (device_rules in device_layout.h).
std::vector<LayersOfEntry> layer_groups(const Plan& plan);

}  // namespace kvant
