#include "cache/placed_plan.h"

#include "cache/device_page_store.h"
#include "cache/host_sequence.h"

namespace kvant {

std::unique_ptr<SequenceStore> PlacedPlan::make_store(std::int64_t byte_limit) const {
  if (on_device()) return std::make_unique<DevicePageStore>(*this, byte_limit);
  return std::make_unique<HostStore>(*plan_, byte_limit);
}

}  // namespace kvant
