// DeviceHeadPages copies the pages of one (layer, KV head) of a sequence from a device to host memory, as
// pages that formats can decode there.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cache/device_sequence.h"
#include "format/page_view.h"

namespace kvant {

class DeviceHeadPages {
 public:
  // Copies the pages of a layer that has attended, in the order of HeadState::list_pages(). The pages hold
  // tokens from first_visible on that no sliding window has freed, and the first n_sealed pages are sealed.
  // `n_sealed` is the number after the step, or the number before the step to see the sequence before its
  // seals. Both work, because the tail lasts as long as the step. An error says that the device has failed.
  Status read(const DeviceSequence& sequence, int layer, int kv_head, int first_visible, int n_sealed);
  // These functions are the parts of read(). With them, the host waits once for several heads. gather()
  // collects bytes on the device, and take() gets what the store then downloads. unpack() may run on any
  // thread after the step.
  Status gather(const DeviceSequence& sequence, int layer, int kv_head, int first_visible, int n_sealed);
  void take(std::shared_ptr<const std::vector<std::byte>> downloaded) { downloaded_ = std::move(downloaded); }
  void unpack();

  // Returns the pages of the newest read() or unpack(), in canonical bytes. The views are valid until the
  // next one.
  const std::vector<PageView>& pages() const { return pages_; }

 private:
  struct Fetched {
    bool is_sealed;
    std::size_t bytes[2];  // bytes of K and V
  };
  void list(const DeviceSequence& sequence, PageEntry entry, const PageView& view);

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<PageDevice> device_;
  int layer_ = 0, kv_head_ = 0;
  std::vector<PageEntry> entries_;
  std::vector<Fetched> fetched_;
  std::shared_ptr<const std::vector<std::byte>> downloaded_;
  std::size_t first_ = 0;  // offset in downloaded_
  std::vector<PageView> pages_;
  std::vector<std::unique_ptr<std::byte[]>> bytes_;  // K of a page, then V of the page
  std::vector<int> protected_tokens_;
  PageContext key_rows_, value_rows_;  // The contexts of unsealed pages.
};

}  // namespace kvant
