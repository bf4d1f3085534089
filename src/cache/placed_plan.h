// PlacedPlan is a plan and the memory that keeps its pages. A cache is opened with a placed plan. Recipes
// know nothing of devices, and a backend says where it reads the pages of a plan (AttentionBackend::place).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "cache/device_constants.h"
#include "cache/page_device.h"
#include "recipe/plan.h"

namespace kvant {

class SequenceStore;

class PlacedPlan {
 public:
  PlacedPlan() = default;  // The object holds no plan.
  // Places the pages in host memory.
  PlacedPlan(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}  // NOLINT: implicit on purpose
  // Places the pages in the memory of `device`, which holds the plan's `constants`.
  PlacedPlan(std::shared_ptr<const Plan> plan, std::shared_ptr<PageDevice> device,
             std::shared_ptr<const DeviceConstants> constants)
      : plan_(std::move(plan)), device_(std::move(device)), constants_(std::move(constants)) {}

  friend bool operator==(const PlacedPlan& placed, std::nullptr_t) { return placed.plan_ == nullptr; }
  const Plan& operator*() const { return *plan_; }
  const Plan* operator->() const { return plan_.get(); }
  const std::shared_ptr<const Plan>& plan() const { return plan_; }

  // Makes the memory of a cache of this plan. The plan outlives the memory. Allocations beyond byte_limit
  // fail; 0 means no limit.
  std::unique_ptr<SequenceStore> make_store(std::int64_t byte_limit) const;

  bool on_device() const { return device_ != nullptr; }
  const std::shared_ptr<PageDevice>& device() const { return device_; }  // null for host memory
  // Requires that the pages lie on a device.
  const DeviceConstants& constants() const { return *constants_; }

 private:
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<PageDevice> device_;
  std::shared_ptr<const DeviceConstants> constants_;
};

}  // namespace kvant
