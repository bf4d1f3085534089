// PageDevice is a device that keeps pages and attends to them. A device has memory, a stream, and the
// functions of kvant's library for the device (kvant/kvant.h). PageDevice is an interface, so tests run
// everything above it without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/geometry.h"
#include "base/result.h"
#include "kvant/kvant.h"

namespace kvant {

// Holds the functions of page_calls.def.
struct PageLibrary {
// NOLINTNEXTLINE(bugprone-macro-parentheses): GCC warns of parentheses around a declared name.
#define KVANT_PAGE_CALL(call) decltype(&kvant_##call) call;
#include "cache/page_calls.def"
#undef KVANT_PAGE_CALL
};

// Copies and library calls run in the order of the calls, on one stream. A PageDevice is not thread-safe.
class PageDevice {
 public:
  virtual ~PageDevice() = default;

  virtual const std::string& name() const = 0;  // for example "cuda:0"
  virtual const PageLibrary& library() const = 0;
  virtual kvant_stream stream() const = 0;

  // Each thread calls enter() before it uses the device or the library.
  virtual void enter() const = 0;
  // Returns memory at a multiple of 256 bytes, or null if memory is exhausted.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual std::int64_t free_bytes() const = 0;

  // The caller may overwrite `from` when upload() returns.
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  // download() waits for all earlier work.
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // Copies n_rows rows of row_bytes bytes. Rows begin to_stride and from_stride bytes apart.
  virtual void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                         std::size_t row_bytes, std::size_t n_rows) = 0;
  // Sets n_rows rows of row_bytes bytes to zero. Rows begin `stride` bytes apart.
  virtual void clear_rows(void* rows, std::size_t stride, std::size_t row_bytes, std::size_t n_rows) = 0;

  // Convert a page from the library's form (page_bytes of the library) to the format's canonical bytes
  // (Format::page_bytes), and back. Both forms lie in host memory. A canonical page of bf16 is rows
  // [kPageTokens, head_dim].
  virtual void page_to_host(const std::string& format, Side side, int head_dim, const std::byte* page,
                            std::byte* canonical) const = 0;
  virtual void page_from_host(const std::string& format, Side side, int head_dim, const std::byte* canonical,
                              std::byte* page) const = 0;

  // Waits for all work. An error says what has failed since the last call.
  virtual Status finish() = 0;
};

// Turns a status of the library into an error that says what the library could not do. The thread must call
// this function before it calls the library again, because last_error() is per thread.
inline Status library_status(const PageDevice& device, const char* doing, kvant_status status) {
  if (status == KVANT_OK) return {};
  if (status == KVANT_OUT_OF_MEMORY)
    return shortage("{} failed on {}: {}", doing, device.name(), device.library().last_error());
  return error("{} failed on {}: {}", doing, device.name(), device.library().last_error());
}

// A DeviceMemory owns memory of a device. The pointer is null if the device has no memory left.
struct DeviceRelease {
  PageDevice* device;
  void operator()(char* memory) const { device->release(memory); }
};
using DeviceMemory = std::unique_ptr<char, DeviceRelease>;
inline DeviceMemory allocate_on(PageDevice& device, std::size_t bytes) {
  return {static_cast<char*>(device.allocate(bytes)), {&device}};
}

}  // namespace kvant
