// Moves pages between the canonical byte order (src/format) and the order in GPU memory (page_layout.h).
#pragma once

#include <cstddef>
#include <string>

#include "base/geometry.h"
#include "device/cuda/page/page_layout.h"

namespace kvant::cuda {

// How the codes of the format called `name` are ordered, or nothing when no kernel reads that format.
struct DeviceFormat {
  CodeLayout layout{};
  bool plain = false;  // bf16: no codes, elements are placed by plain_index
};
bool find_device_format(const std::string& name, DeviceFormat& format);

// page_bytes: of the canonical page. The device page has round_up_16(page_bytes) bytes, all of them written.
void page_to_device(const DeviceFormat& format, Side side, int d, std::size_t page_bytes,
                    const std::byte* canonical, std::byte* device);
void page_from_device(const DeviceFormat& format, Side side, int d, std::size_t page_bytes,
                      const std::byte* device, std::byte* canonical);

}  // namespace kvant::cuda
