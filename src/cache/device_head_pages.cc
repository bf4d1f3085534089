#include "cache/device_head_pages.h"

#include <algorithm>
#include <utility>

namespace kvant {

void DeviceHeadPages::list(const DeviceSequence& sequence, PageEntry entry, const PageView& view) {
  const EntryLayout::Layer& layout =
      sequence.store().store_of(entry.room, layer_).layout(entry.room).layers[layer_];
  entries_.push_back(entry);
  fetched_.push_back(
      {entry.room == kSealedRoom, {layout.bytes(kv_head_, Side::key), layout.bytes(kv_head_, Side::value)}});
  pages_.push_back(view);
}

Status DeviceHeadPages::gather(const DeviceSequence& sequence, int layer, int kv_head, int first_visible,
                               int n_sealed) {
  DevicePageStore& store = sequence.store();
  plan_ = store.shared_plan();
  device_ = store.device();
  layer_ = layer;
  kv_head_ = kv_head;
  entries_.clear();
  fetched_.clear();
  pages_.clear();
  protected_tokens_ = sequence.protected_tokens(layer, kv_head, n_sealed);
  sequence.list_head(layer, protected_tokens_, masks_of(protected_tokens_), first_visible, n_sealed,
                     sequence.ledger(store.group_of(layer)).end(),
                     [&](const PageView& view, PageEntry entry) { list(sequence, entry, view); });
  const auto first = store.gather_head(entries_, layer, kv_head);
  if (!first.ok()) return first.error();
  first_ = *first;
  return {};
}

void DeviceHeadPages::unpack() {
  const int d = plan_->geometry.dim(layer_);
  const HeadPlan& head = plan_->head(layer_, kv_head_);
  bytes_.clear();
  for (const Side side : kSides) {
    const PageContext& context = head.side(side).context;
    (side == Side::key ? key_rows_ : value_rows_) = PageContext{context.head_dim, context.constants, {}};
  }
  std::span<const std::byte> left = std::span(*downloaded_).subspan(first_);
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    for (const Side side : kSides) {
      const Format& format = fetched_[i].is_sealed ? *head.side(side).sealed : *plan_->tail;
      const std::size_t n_bytes = fetched_[i].bytes[side == Side::key ? 0 : 1];
      bytes_.push_back(std::make_unique<std::byte[]>(format.page_bytes(d)));
      page_to_host(*device_, format, side, d, left.first(n_bytes), bytes_.back().get());
      left = left.subspan(n_bytes);
      const PageContext& of_rows = side == Side::key ? key_rows_ : value_rows_;
      const PageContext& context = fetched_[i].is_sealed ? head.side(side).context : of_rows;
      (side == Side::key ? pages_[i].k : pages_[i].v) = PageSide{&format, bytes_.back().get(), &context};
    }
  }
}

Status DeviceHeadPages::read(const DeviceSequence& sequence, int layer, int kv_head, int first_visible,
                             int n_sealed) {
  KVANT_RETURN_IF_ERROR(gather(sequence, layer, kv_head, first_visible, n_sealed));
  auto downloaded = std::make_shared<std::vector<std::byte>>();
  KVANT_RETURN_IF_ERROR(sequence.store().download_gathered(*downloaded));
  take(std::move(downloaded));
  unpack();
  return {};
}

}  // namespace kvant
