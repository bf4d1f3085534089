// PageDevice: a device that keeps pages and attends to them: its memory, its stream, and the functions of
// kvant's GPU library (kvant/kvant.h). An interface, so that all that lies above it runs in tests without a
// GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/geometry.h"
#include "base/result.h"
#include "kvant/kvant.h"

namespace kvant {

// The functions of the library that the cache and its attention call.
struct PageLibrary {
  decltype(&kvant_last_error) last_error;
  decltype(&kvant_page_bytes) page_bytes;
  decltype(&kvant_can_seal) can_seal;
  decltype(&kvant_decode_kernel) decode_kernel;
  decltype(&kvant_decode_workspace) decode_workspace;
  decltype(&kvant_decode_schedule) decode_schedule;
  decltype(&kvant_decode_attention) decode_attention;
  decltype(&kvant_append) append;
  decltype(&kvant_seal_pages) seal_pages;
  decltype(&kvant_dequantize) dequantize;
  decltype(&kvant_transform) transform;
  decltype(&kvant_prompt_workspace) prompt_workspace;
  decltype(&kvant_prompt_attention) prompt_attention;
  decltype(&kvant_weigh_tokens) weigh_tokens;
  decltype(&kvant_protect) protect;
};

// What is copied, and what the library does, happens in the order of the calls, on one stream. Not
// thread-safe.
class PageDevice {
 public:
  virtual ~PageDevice() = default;

  virtual const std::string& name() const = 0;  // "cuda:0"
  virtual const PageLibrary& library() const = 0;
  virtual kvant_stream stream() const = 0;

  // To be called by each thread before it uses the device, the library included.
  virtual void enter() const = 0;
  // Null where memory is exhausted. From an address that is a multiple of 256.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual std::int64_t free_bytes() const = 0;

  // `from` is the caller's again on return.
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  // Waits for what precedes.
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // Rows of so many bytes, the first bytes of every so many.
  virtual void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                         std::size_t row_bytes, std::size_t n_rows) = 0;
  // Such rows become zero.
  virtual void clear_rows(void* rows, std::size_t stride, std::size_t row_bytes, std::size_t n_rows) = 0;

  // A page of a format as the library keeps it in memory (page_bytes of the library), in the format's
  // canonical bytes (Format::page_bytes), and back. Both lie in host memory. Of bf16: rows [kPageTokens,
  // head_dim].
  virtual void page_to_host(const std::string& format, Side side, int head_dim, const std::byte* page,
                            std::byte* canonical) const = 0;
  virtual void page_from_host(const std::string& format, Side side, int head_dim, const std::byte* canonical,
                              std::byte* page) const = 0;

  // Waits for everything. An error: what went wrong since the last time.
  virtual Status finish() = 0;
};

// A status of the library as an error that says what it couldn't do. To be made before the thread calls the
// library again.
inline Status library_status(const PageDevice& device, const char* doing, kvant_status status) {
  if (status == KVANT_OK) return {};
  if (status == KVANT_OUT_OF_MEMORY)
    return shortage("{} failed on {}: {}", doing, device.name(), device.library().last_error());
  return error("{} failed on {}: {}", doing, device.name(), device.library().last_error());
}

// Memory of a device, while it lives. Null where the device has none.
struct DeviceRelease {
  PageDevice* device;
  void operator()(char* memory) const { device->release(memory); }
};
using DeviceMemory = std::unique_ptr<char, DeviceRelease>;
inline DeviceMemory allocate_on(PageDevice& device, std::size_t bytes) {
  return {static_cast<char*>(device.allocate(bytes)), {&device}};
}

}  // namespace kvant
