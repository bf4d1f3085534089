// The attention backend of a device: which of its kernels serve a plan, and whether it can have it. What runs
// them is DeviceAttention.
#pragma once

#include <memory>

#include "attention/attention.h"
#include "cache/page_device.h"

namespace kvant {

std::unique_ptr<AttentionBackend> make_device_backend(std::shared_ptr<PageDevice> device);

}  // namespace kvant
