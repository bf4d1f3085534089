// Declares the attention backend of a device. The backend says which of the device's kernels serve a plan,
// and whether the device can serve the plan at all. DeviceAttention runs the kernels.
#pragma once

#include <memory>

#include "attention/attention.h"
#include "cache/page_device.h"

namespace kvant {

std::unique_ptr<AttentionBackend> make_device_backend(std::shared_ptr<PageDevice> device);

}  // namespace kvant
