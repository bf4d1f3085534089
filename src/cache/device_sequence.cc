#include "cache/device_sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/device_head_pages.h"
#include "cache/device_image.h"
#include "cache/head_state.h"
#include "cache/page_counts.h"

namespace kvant {

DeviceSequence::DeviceSequence(DevicePageStore& store) : SequencePages(store), store_(store) {}

// --- a step ---

// The library writes all sums of a step that seals. Only the first sums must be zeros before.
std::shared_ptr<SequenceSums> DeviceSequence::make_sums() {
  EntryHold entry = take(kSumsRoom);
  if (!entry.entry().held()) return nullptr;
  if (sums() == nullptr) store_.clear_sums(entry.entry());
  return std::make_shared<SumsEntry>(std::move(entry));
}

int first_observer_of(int page_end, int first, int first_observer) {
  return std::max(page_end - kObservers, first_observer >= 0 ? first_observer : first);
}

// A step writes only observers that no committed sequence uses.
bool DeviceSequence::on_reserve() {
  DeviceEntryStore& entries = store_.auxiliary();
  const int end = ledger(0).end();
  if (tokens() == nullptr || open_observers(end) == 0) return true;
  const bool stays = end / kPageTokens == length() / kPageTokens;
  const int page_end = (end / kPageTokens + 1) * kPageTokens;
  const PageEntry now = stays ? observers_.hold.entry() : PageEntry{};
  next_observers_.first = first_observer_of(page_end, length(), stays ? observers_.first : -1);
  const bool is_own = now.held() && !entries.shared(now);
  next_observers_.hold = is_own ? observers_.hold.share() : take(kObserversRoom);
  if (!next_observers_.hold.entry().held()) return false;
  if (now.held() && !is_own) entries.copy(now, kObservers, next_observers_.hold.entry());
  return true;
}

void DeviceSequence::on_commit() {
  observers_ = std::exchange(next_observers_, {});
}

void DeviceSequence::on_abort() {
  next_observers_ = {};
}

// --- between steps ---

void DeviceSequence::on_copy(const SequencePages& from) {
  const auto& other = dynamic_cast<const DeviceSequence&>(from);
  observers_ = {other.observers_.hold.share(), other.observers_.first};
}

Status DeviceSequence::reopen(int group, int n_tokens, PageEntry sealed, PageEntry tail) {
  return store_.reopen(*this, group, n_tokens / kPageTokens, sealed, tail);
}

// The observers of an ended page are gone.
void DeviceSequence::on_truncate(int n_tokens) {
  const int first = observers_.first;
  if (first < 0 || first >= n_tokens || first / kPageTokens != n_tokens / kPageTokens) observers_ = {};
}

// --- bytes ---

std::int64_t DeviceSequence::bytes_of(const SequenceSums& /*sums*/) const {
  return store_.auxiliary().entry_bytes(kSumsRoom);
}

void DeviceSequence::visit_observers(const Visit& visit) const {
  const PageEntry entry = observers_.hold.entry();
  if (!entry.held()) return;
  visit({.name = {-1, HeldPage::Kind::auxiliary, entry.room, entry.id},
         .shared = store_.auxiliary().shared(entry),
         .bytes = store_.auxiliary().bytes_of(entry),
         .part = &CacheBytes::tail});
}

Result<ListedPages> DeviceSequence::list_pages(int layer, int kv_head, int first_visible) const {
  const auto copied = std::make_shared<DeviceHeadPages>();
  const int n_sealed = ledger(store_.group_of(layer)).end_sealed();
  KVANT_RETURN_IF_ERROR(copied->read(*this, layer, kv_head, first_visible, n_sealed));
  return ListedPages{copied->pages(), copied};
}

// --- images ---

// A device with an unquantized plan seals nothing. The image then has the sealed pages that a cache in host
// memory would have.
int DeviceSequence::image_sealed(int index) const {
  const PageLedger& of_group = ledger(index);
  if (group(index).rules.seals) return of_group.n_sealed();
  return page_counts(of_group.length(), plan().layers.front().window, /*sliding_window=*/0,
                     of_group.n_sealed())
      .sealed;
}

Status DeviceSequence::on_save(std::vector<HeadImage>& images) const {
  DeviceImage image(store_);
  DeviceImage::Entries entries{.first_observer = observers_.first};
  const std::pair<PageEntry, DeviceImage::Bytes*> wanted[] = {
      {entry_of(sums()), &entries.sums},
      {entry_of(checkpoint_sums()), &entries.checkpoint_sums},
      {observers_.hold.entry(), &entries.observers}};
  for (const auto& [entry, bytes] : wanted) {
    if (!entry.held()) continue;
    *bytes = image.room_for(entry.room);
    KVANT_RETURN_IF_ERROR(store_.auxiliary().download(entry, bytes->data()));
  }
  const Geometry& g = plan().geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int n_sealed = image_sealed(store_.group_of(layer));
    if (tokens() == nullptr && n_sealed > 0 && plan().layers[layer].sink > 0 && rows().empty())
      return error("cannot save a sequence of '{}' whose pages lie on {}: leave the sink out with sink=0",
                   label(plan().recipe), store_.device()->name());
    for (int h = 0; h < g.kv_heads(layer); ++h)
      image.add_to(images[g.head_index(layer, h)], {layer, h, length(), n_sealed}, entries);
  }
  return {};
}

// Takes entries for everything that a sequence of this length may have, and gives back what the image has
// not filled.
bool DeviceSequence::on_load(ByteReader& from, std::vector<HeadImage>& images) {
  DeviceImage image(store_);
  DeviceImage::Entries entries;
  DeviceEntryStore& auxiliary = store_.auxiliary();
  if (is_corrected(plan())) {
    set_sums(make_sums(), make_sums());
    if (sums() == nullptr || checkpoint_sums() == nullptr) return false;
    entries.sums = entries.checkpoint_sums = image.room_for(kSumsRoom);
  }
  if (tokens() != nullptr && open_observers(length()) > 0) {
    observers_.hold = take(kObserversRoom);
    if (!observers_.hold.entry().held()) return false;
    entries.observers = image.room_for(kObserversRoom);
  }
  bool any_sums = false, any_checkpoint = false;
  for_each_head(plan().geometry, [&](int layer, int h, int index) {
    const HeadImage& head = images[index];
    from.require(image.put(head, {layer, h, length(), ledger(store_.group_of(layer)).n_sealed()}, entries));
    any_sums = any_sums || !head.sums.empty();
    any_checkpoint = any_checkpoint || !head.checkpoint_sums.empty();
  });
  if (!from.ok()) return true;
  if (any_sums) auxiliary.upload(entries.sums.data(), entry_of(sums()));
  if (any_checkpoint) auxiliary.upload(entries.checkpoint_sums.data(), entry_of(checkpoint_sums()));
  set_sums(any_sums ? sums() : nullptr, any_checkpoint ? checkpoint_sums() : nullptr);
  observers_.first = std::max(entries.first_observer, -1);
  if (observers_.first < 0) {
    observers_.hold.reset();
  } else {
    auxiliary.upload(entries.observers.data(), observers_.hold.entry());
  }
  return true;
}

// --- of a step ---

DeviceSequence& device_sequence(const Step& step, int slice) {
  auto* pages = dynamic_cast<DeviceSequence*>(&step.pages(slice));
  KVANT_CHECK(pages != nullptr, "pages of a device that lie elsewhere");
  return *pages;
}

DevicePageStore& device_pages(const Step& step) {
  auto* pages = dynamic_cast<DevicePageStore*>(&step.store());
  KVANT_CHECK(pages != nullptr, "pages of a device that lie elsewhere");
  return *pages;
}

}  // namespace kvant
