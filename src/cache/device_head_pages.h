// DeviceHeadPages: what a sequence whose pages lie on a device holds of one (layer, KV head), copied to host
// memory as pages that formats decode there.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cache/cache.h"
#include "cache/page_store.h"

namespace kvant {

class DeviceHeadPages {
 public:
  // Copies what slice `slice` of an open step holds of a layer that has attended, as HeadState::list_pages()
  // lists it: pages with tokens from first_visible on, of which the first n_sealed are sealed. n_sealed: what
  // the step leaves, or, for a sequence as it was before its seals, what it found: the tail lasts as long as
  // the step. An error: the device has failed.
  Status read(const Step& step, int slice, int layer, int kv_head, int first_visible, int n_sealed);

  // Of the newest read(), which they live as long as. Bytes are canonical.
  const std::vector<PageView>& pages() const { return pages_; }

 private:
  struct Place;
  Status add(const Place& place, PageEntry entry, PageView view);
  Status add_protected(const Place& place, int n_sealed);

  std::vector<PageView> pages_;
  std::vector<std::unique_ptr<std::byte[]>> bytes_;  // of a page's K, then of its V
  std::vector<int> protected_tokens_;
  PageContext key_rows_, value_rows_;  // of pages that aren't sealed
};

// The tokens of a head that are protected once the step has sealed its pages, ascending.
std::vector<int> protected_tokens(const Step& step, int slice, int layer, int kv_head, int n_sealed);

}  // namespace kvant
