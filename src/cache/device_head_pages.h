// DeviceHeadPages: what a sequence whose pages lie on a device holds of one (layer, KV head), copied to host
// memory as pages that formats decode there.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cache/device_sequence.h"
#include "format/page_view.h"

namespace kvant {

class DeviceHeadPages {
 public:
  // Copies what a sequence holds of a layer that has attended, as HeadState::list_pages() lists it: pages
  // with tokens from first_visible on that no sliding window has freed, of which the first n_sealed are
  // sealed. n_sealed: what the step leaves, or, for a sequence as it was before its seals, what it found: the
  // tail lasts as long as the step. An error: the device has failed.
  Status read(const DeviceSequence& sequence, int layer, int kv_head, int first_visible, int n_sealed);
  // Its parts, so that the host waits once for several: gathering on the device; what the store then
  // downloads; and what any thread can do with it when the step is over.
  Status gather(const DeviceSequence& sequence, int layer, int kv_head, int first_visible, int n_sealed);
  void take(std::shared_ptr<const std::vector<std::byte>> downloaded) { downloaded_ = std::move(downloaded); }
  void unpack();

  // Of the newest read() or unpack(), which they live as long as. Bytes are canonical.
  const std::vector<PageView>& pages() const { return pages_; }

 private:
  struct Fetched {
    bool is_sealed;
    std::size_t bytes[2];  // of K and V
  };
  void list(const DeviceSequence& sequence, PageEntry entry, const PageView& view);
  void list_protected(const DeviceSequence& sequence);

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<PageDevice> device_;
  int layer_ = 0, kv_head_ = 0;
  std::vector<PageEntry> entries_;
  std::vector<Fetched> fetched_;
  std::shared_ptr<const std::vector<std::byte>> downloaded_;
  std::size_t first_ = 0;  // of its bytes
  std::vector<PageView> pages_;
  std::vector<std::unique_ptr<std::byte[]>> bytes_;  // of a page's K, then of its V
  std::vector<int> protected_tokens_;
  PageContext key_rows_, value_rows_;  // of pages that aren't sealed
};

}  // namespace kvant
