// PlacedPlan: a plan, and whose memory keeps its pages: what a cache is opened with. Recipes know nothing of
// devices; a backend says where it reads the pages of a plan (AttentionBackend::place).
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
  PlacedPlan() = default;  // there is none
  // In host memory.
  PlacedPlan(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}  // NOLINT: implicit on purpose
  // In the memory of `device`, where `constants` are those of the plan.
  PlacedPlan(std::shared_ptr<const Plan> plan, std::shared_ptr<PageDevice> device,
             std::shared_ptr<const DeviceConstants> constants)
      : plan_(std::move(plan)), device_(std::move(device)), constants_(std::move(constants)) {}

  friend bool operator==(const PlacedPlan& placed, std::nullptr_t) { return placed.plan_ == nullptr; }
  const Plan& operator*() const { return *plan_; }
  const Plan* operator->() const { return plan_.get(); }
  const std::shared_ptr<const Plan>& plan() const { return plan_; }

  // The memory of a cache of this plan, which outlives it. byte_limit: allocations beyond it fail; 0: none.
  std::unique_ptr<SequenceStore> make_store(std::int64_t byte_limit) const;

  bool on_device() const { return device_ != nullptr; }
  const std::shared_ptr<PageDevice>& device() const { return device_; }  // null: host memory
  // Requires that the pages lie on a device.
  const DeviceConstants& constants() const { return *constants_; }

 private:
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<PageDevice> device_;
  std::shared_ptr<const DeviceConstants> constants_;
};

}  // namespace kvant
