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

// Images store the rows of the sink and the rows of tokens that scores protect in one form.
Status DeviceSequence::save_heads(const SeeHead& see) const {
  DeviceImage image(store_);
  DeviceImage::Entries entries{.first_observer = observers_.first};
  const auto fetch = [&](PageEntry entry, DeviceImage::Bytes& to) -> Status {
    auto bytes = image.fetch(store_.auxiliary(), entry);
    if (!bytes.ok()) return bytes.error();
    to = std::move(bytes).value();
    return {};
  };
  for (const EntryHold& held : rows())
    KVANT_RETURN_IF_ERROR(fetch(held.entry(), entries.rows.emplace_back()));
  KVANT_RETURN_IF_ERROR(fetch(entry_of(sums()), entries.sums));
  KVANT_RETURN_IF_ERROR(fetch(entry_of(checkpoint_sums()), entries.checkpoint_sums));
  KVANT_RETURN_IF_ERROR(fetch(observers_.hold.entry(), entries.observers));
  const Geometry& g = plan().geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int n_sealed = image_sealed(store_.group_of(layer));
    if (tokens() == nullptr && n_sealed > 0 && plan().layers[layer].sink > 0 && rows().empty())
      return error("cannot save a sequence of '{}' whose pages lie on {}: leave the sink out with sink=0",
                   label(plan().recipe), store_.device()->name());
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      HeadImage of_head = image_of_tokens(layer, h);
      image.add_to(of_head, {layer, h, length(), n_sealed}, entries);
      see(layer, h, of_head);
    }
  }
  return {};
}

// Takes entries for everything that a sequence of this length may have besides pages.
bool DeviceSequence::take_auxiliary() {
  if (is_corrected(plan())) {
    set_sums(make_sums(), make_sums());
    if (sums() == nullptr || checkpoint_sums() == nullptr) return false;
  }
  if (tokens() != nullptr && open_observers(length()) > 0) {
    observers_.hold = take(kObserversRoom);
    if (!observers_.hold.entry().held()) return false;
  }
  return take_rows();
}

// Returns whether an image's protected tokens are possible for this plan with n_sealed sealed pages.
bool DeviceSequence::may_protect(const std::vector<int>& wanted, int layer, int n_sealed) const {
  if (tokens() != nullptr) return true;
  const int sink = n_sealed > 0 ? plan().layers[layer].sink : 0;
  return (sink == 0 || !rows().empty()) && wanted.size() == static_cast<std::size_t>(sink) &&
         (sink == 0 || wanted.back() == sink - 1);
}

bool DeviceSequence::load_heads(ByteReader& from, int n_sealed, const NextHead& next) {
  if (!take_auxiliary()) return false;
  DeviceImage image(store_);
  DeviceImage::Entries entries;
  for (std::size_t i = 0; i < rows().size(); ++i) entries.rows.push_back(image.room_for(kProtectedRoom));
  if (sums() != nullptr) entries.sums = entries.checkpoint_sums = image.room_for(kSumsRoom);
  if (observers_.hold.entry().held()) entries.observers = image.room_for(kObserversRoom);
  bool any_sums = false, any_checkpoint = false;
  load_each_head(from, next, [&](int layer, int h, HeadImage& head) {
    from.require(may_protect(head.chosen.tokens, layer, n_sealed) &&
                 image.put(head, {layer, h, length(), n_sealed}, entries));
    any_sums = any_sums || !head.sums.empty();
    any_checkpoint = any_checkpoint || !head.checkpoint_sums.empty();
    return true;
  });
  if (from.ok()) keep_loaded(entries, any_sums, any_checkpoint);
  return true;
}

// Uploads the entries that an image has filled, and gives the other entries back.
void DeviceSequence::keep_loaded(const DeviceImage::Entries& entries, bool any_sums, bool any_checkpoint) {
  DeviceEntryStore& auxiliary = store_.auxiliary();
  if (any_sums) auxiliary.upload(entries.sums.data(), entry_of(sums()));
  if (any_checkpoint) auxiliary.upload(entries.checkpoint_sums.data(), entry_of(checkpoint_sums()));
  set_sums(any_sums ? sums() : nullptr, any_checkpoint ? checkpoint_sums() : nullptr);
  for (std::size_t i = 0; i < rows().size(); ++i) auxiliary.upload(entries.rows[i].data(), rows()[i].entry());
  observers_.first = std::max(entries.first_observer, -1);
  if (observers_.first < 0) return observers_.hold.reset();
  auxiliary.upload(entries.observers.data(), observers_.hold.entry());
}

Status DeviceSequence::save_page(ByteWriter& to, int group, int page) const {
  DeviceImage image(store_);
  const auto entry = image.fetch(store_.of_group(group), page_entry(group, page));
  if (!entry.ok()) return entry.error();
  for_each_part(group, page,
                [&](const PagePart& part) { image.save_part(entry->data(), part, to.skip(part.bytes)); });
  return {};
}

void DeviceSequence::load_page(ByteReader& from, int group, int page) {
  DeviceImage image(store_);
  const PageEntry to = page_entry(group, page);
  DeviceImage::Bytes entry(store_.of_group(group).layout(to.room).bytes);
  for_each_part(group, page, [&](const PagePart& part) {
    if (const std::byte* canonical = from.skip(part.bytes)) image.load_part(canonical, part, entry.data());
  });
  if (from.ok()) store_.of_group(group).upload(entry.data(), to);
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
