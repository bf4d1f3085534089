// Asks a device whether it serves a plan. The library judges each layer (kvant_supports). A few rules of the
// cache and its attention come on top.
#pragma once

#include "base/result.h"
#include "cache/page_device.h"
#include "recipe/plan.h"

namespace kvant {

// Returns an error that says what the device lacks for the plan, and the nearest plan that the device serves.
Status check_support(const Plan& plan, const PageDevice& device);
// Returns whether check_support() finds nothing.
bool serves(const PageDevice& device, const Plan& plan);

}  // namespace kvant
