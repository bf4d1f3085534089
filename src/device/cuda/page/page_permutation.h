// Moves pages between the canonical byte order (src/format) and the order in GPU memory (page_layout.h).
// Pages have canonical order when they leave or enter the GPU, and when tests compare them.
#pragma once

#include <cstddef>
#include <string>

#include "base/geometry.h"
#include "device/cuda/page/page_layout.h"

namespace kvant::cuda {

// DeviceFormat holds the order of a format's codes in GPU memory. find_device_format() returns false if no
// kernel reads the format with the name `name`.
struct DeviceFormat {
  CodeLayout layout{};
  bool plain = false;  // bf16, which has no codes and is placed by plain_index
};
bool find_device_format(const std::string& name, DeviceFormat& format);

// page_to_device() and page_from_device() convert a page. page_bytes is the size of the canonical page. All
// round_up_16(page_bytes) bytes of the device page are written.
void page_to_device(const DeviceFormat& format, Side side, int d, std::size_t page_bytes,
                    const std::byte* canonical, std::byte* device);
void page_from_device(const DeviceFormat& format, Side side, int d, std::size_t page_bytes,
                      const std::byte* device, std::byte* canonical);

}  // namespace kvant::cuda
