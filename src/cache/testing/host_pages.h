// HostPages is a device whose memory is host memory and whose library is the CPU library. Tests run the code
// for devices on HostPages, without a GPU.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "cache/page_device.h"
#include "format/code_order.h"
#include "format/format.h"

namespace kvant::testing {

// Attends by the reference, because tests compare two ways to one result more closely than kernels round.
inline kvant_status decode_by_reference(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                                        const kvant_decode_layer* layer, void* workspace,
                                        std::size_t workspace_bytes, kvant_stream stream) {
  kvant_decode_shape plain = *shape;
  plain.kernels = "reference";
  return kvant_decode_attention(&plain, lengths, layer, workspace, workspace_bytes, stream);
}
inline kvant_status prompt_by_reference(const kvant_prompt_shape* shape, const kvant_prompt* prompt,
                                        void* workspace, std::size_t workspace_bytes, kvant_stream stream) {
  kvant_prompt_shape plain = *shape;
  plain.kernels = "reference";
  return kvant_prompt_attention(&plain, prompt, workspace, workspace_bytes, stream);
}

// Returns the CPU library's functions.
inline PageLibrary cpu_library() {
  PageLibrary library{
#define KVANT_PAGE_CALL(call) kvant_##call,
#include "cache/page_calls.def"
#undef KVANT_PAGE_CALL
  };
  library.decode_attention = decode_by_reference;
  library.prompt_attention = prompt_by_reference;
  return library;
}

class HostPages : public PageDevice {
 public:
  // `limit` is the number of bytes that can be allocated; 0 means no limit.
  explicit HostPages(std::size_t limit = 0) : limit_(limit) {}

  const std::string& name() const override { return name_; }
  const PageLibrary& library() const override { return library_; }
  kvant_stream stream() const override { return nullptr; }
  void enter() const override {}
  // All memory lies in one range of addresses, as on a GPU.
  void* allocate(std::size_t bytes) override {
    if (limit_ > 0 && taken_ + bytes > limit_) return nullptr;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    taken_ += bytes;
    sizes_[memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    if (memory == nullptr) return;
    munmap(memory, sizes_[memory]);
    taken_ -= sizes_[memory];
    sizes_.erase(memory);
  }
  std::int64_t free_bytes() const override {
    return static_cast<std::int64_t>(limit_ > 0 ? limit_ - taken_ : std::size_t{1} << 40);
  }
  void upload(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t row_bytes, std::size_t n_rows) override {
    for (std::size_t i = 0; i < n_rows; ++i)
      std::memcpy(static_cast<char*>(to) + i * to_stride, static_cast<const char*>(from) + i * from_stride,
                  row_bytes);
  }
  void clear_rows(void* rows, std::size_t stride, std::size_t row_bytes, std::size_t n_rows) override {
    for (std::size_t i = 0; i < n_rows; ++i) std::memset(static_cast<char*>(rows) + i * stride, 0, row_bytes);
  }
  // The CPU library keeps codes in the order of with_code_order().
  void page_to_host(const std::string& format, Side side, int d, const std::byte* page,
                    std::byte* canonical) const override {
    const Format& known = *find_format(format);
    const auto ordered = with_code_order(known, side, d);
    to_canonical_order(ordered == nullptr ? known : *ordered, d, page, canonical);
  }
  void page_from_host(const std::string& format, Side side, int d, const std::byte* canonical,
                      std::byte* page) const override {
    const Format& known = *find_format(format);
    const auto ordered = with_code_order(known, side, d);
    from_canonical_order(ordered == nullptr ? known : *ordered, d, canonical, page);
  }
  Status finish() override { return std::exchange(failure_, {}); }

  // Tests of failures replace functions of the library, and set what finish() returns next.
  PageLibrary& functions() { return library_; }
  void fail(Error failure) { failure_ = std::move(failure); }

 private:
  std::string name_ = "the host";
  PageLibrary library_ = cpu_library();
  Status failure_;
  std::size_t limit_, taken_ = 0;
  std::map<void*, std::size_t> sizes_;
};

}  // namespace kvant::testing
