#include "cache/device_head_pages.h"

#include <algorithm>
#include <numeric>

#include "cache/device_layout.h"
#include "cache/device_sequence.h"

namespace kvant {

std::vector<int> protected_tokens(const Step& step, int slice, int layer, int kv_head, int n_sealed) {
  const Plan& plan = step.plan();
  if (protects_by_score(plan)) {
    std::vector<int> tokens = device_sequence(step, slice)
                                  .next_protection()
                                  .tokens->heads[plan.geometry.head_index(layer, kv_head)]
                                  .tokens;
    tokens.erase(std::lower_bound(tokens.begin(), tokens.end(), n_sealed * kPageTokens), tokens.end());
    return tokens;
  }
  std::vector<int> tokens(n_sealed > 0 && device_pages(step).has_sink() ? plan.layers[layer].sink : 0);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

void DeviceHeadPages::list(const Step& step, PageEntry entry, const PageView& view) {
  const EntryLayout::Layer& layout =
      device_pages(step).store_of(entry.room, layer_).layout(entry.room).layers[layer_];
  entries_.push_back(entry);
  fetched_.push_back(
      {entry.room == kSealedRoom, {layout.bytes(kv_head_, Side::key), layout.bytes(kv_head_, Side::value)}});
  pages_.push_back(view);
}

void DeviceHeadPages::list_protected(const Step& step, int slice) {
  const auto n = static_cast<int>(protected_tokens_.size());
  const bool by_score = protects_by_score(*plan_);
  for (int row = 0; row < n; row += kPageTokens) {
    const PageEntry entry =
        by_score ? device_sequence(step, slice).next_protection().pages[row / kPageTokens].entry()
                 : device_sequence(step, slice).sink();
    list(step, entry,
         {.n_tokens = std::min(kPageTokens, n - row),
          .is_protected = true,
          .protected_tokens = protected_tokens_.data() + row});
  }
}

Status DeviceHeadPages::gather(const Step& step, int slice, int layer, int kv_head, int first_visible,
                               int n_sealed) {
  plan_ = step.shared_plan();
  device_ = device_pages(step).device();
  layer_ = layer;
  kv_head_ = kv_head;
  const PageLedger& ledger = step.ledger(slice, layer);
  entries_.clear();
  fetched_.clear();
  pages_.clear();
  protected_tokens_ = protected_tokens(step, slice, layer, kv_head, n_sealed);
  for (int page = std::max(ledger.first_page(), first_visible / kPageTokens); page < n_sealed; ++page) {
    PageView view{.first_token = page * kPageTokens, .n_tokens = kPageTokens};
    for (auto token = std::lower_bound(protected_tokens_.begin(), protected_tokens_.end(), view.first_token);
         token != protected_tokens_.end() && *token < view.first_token + kPageTokens; ++token)
      view.masked.set(*token - view.first_token);
    list(step, ledger.sealed(page), view);
  }
  list_protected(step, slice);
  for (int page = std::max(n_sealed, first_visible / kPageTokens); page * kPageTokens < ledger.end();
       ++page) {
    PageView view{.first_token = page * kPageTokens};
    view.n_tokens = std::min(kPageTokens, ledger.end() - view.first_token);
    list(step, ledger.tail(page), view);
  }
  const auto first = device_pages(step).gather_head(entries_, layer, kv_head);
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
  auto from = downloaded_->begin() + static_cast<std::ptrdiff_t>(first_);
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    for (const Side side : kSides) {
      const Format& format = fetched_[i].is_sealed ? *head.side(side).sealed : *plan_->tail;
      const auto bytes = static_cast<std::ptrdiff_t>(fetched_[i].bytes[side == Side::key ? 0 : 1]);
      // Entries of a few rows are moved as the beginning of a page.
      std::vector<std::byte> page(std::max<std::size_t>(bytes, format.page_bytes(d)));
      std::copy_n(from, bytes, page.begin());
      from += bytes;
      bytes_.push_back(std::make_unique<std::byte[]>(format.page_bytes(d)));
      device_->page_to_host(format.name(), side, d, page.data(), bytes_.back().get());
      const PageContext& of_rows = side == Side::key ? key_rows_ : value_rows_;
      const PageContext& context = fetched_[i].is_sealed ? head.side(side).context : of_rows;
      (side == Side::key ? pages_[i].k : pages_[i].v) = PageSide{&format, bytes_.back().get(), &context};
    }
  }
}

Status DeviceHeadPages::read(const Step& step, int slice, int layer, int kv_head, int first_visible,
                             int n_sealed) {
  KVANT_RETURN_IF_ERROR(gather(step, slice, layer, kv_head, first_visible, n_sealed));
  auto downloaded = std::make_shared<std::vector<std::byte>>();
  KVANT_RETURN_IF_ERROR(device_pages(step).download_gathered(*downloaded));
  take(std::move(downloaded));
  unpack();
  return {};
}

}  // namespace kvant
