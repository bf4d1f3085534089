#include "cache/device_head_pages.h"

#include <algorithm>
#include <numeric>

#include "cache/device_layout.h"

namespace kvant {

struct DeviceHeadPages::Place {
  const Step& step;
  int slice, layer, kv_head;

  const HeadPlan& head() const { return step.plan().head(layer, kv_head); }
};

std::vector<int> protected_tokens(const Step& step, int slice, int layer, int kv_head, int n_sealed) {
  const Plan& plan = step.plan();
  if (protects_by_score(plan)) {
    std::vector<int> tokens =
        step.next_protection(slice).tokens->heads[plan.geometry.head_index(layer, kv_head)].tokens;
    tokens.erase(std::lower_bound(tokens.begin(), tokens.end(), n_sealed * kPageTokens), tokens.end());
    return tokens;
  }
  std::vector<int> tokens(n_sealed > 0 && step.device_pages().has_sink() ? plan.layers[layer].sink : 0);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Copies a page of both sides, and lists it as `view` has it.
Status DeviceHeadPages::add(const Place& place, PageEntry entry, PageView view) {
  const Plan& plan = place.step.plan();
  const int d = plan.geometry.head_dim;
  const bool is_sealed = entry.room == kSealedRoom;
  const EntryLayout::Layer& layout = place.step.device_pages().layout(entry.room).layers[place.layer];
  const std::size_t key_bytes = layout.bytes(place.kv_head, Side::key),
                    value_bytes = layout.bytes(place.kv_head, Side::value);
  std::vector<std::byte> copied(key_bytes + value_bytes);
  KVANT_RETURN_IF_ERROR(
      place.step.device_pages().download_head(entry, place.layer, place.kv_head, copied.data()));
  for (const Side side : kSides) {
    const Format& format = is_sealed ? *place.head().side(side).sealed : *plan.tail;
    const std::size_t bytes = side == Side::key ? key_bytes : value_bytes;
    // Entries of a few rows are moved as the beginning of a page.
    std::vector<std::byte> page(std::max(bytes, format.page_bytes(d)));
    std::copy_n(copied.begin() + (side == Side::key ? 0 : static_cast<std::ptrdiff_t>(key_bytes)), bytes,
                page.begin());
    bytes_.push_back(std::make_unique<std::byte[]>(format.page_bytes(d)));
    plan.device->page_to_host(format.name(), side, d, page.data(), bytes_.back().get());
    (side == Side::key ? view.k : view.v) = {
        &format, bytes_.back().get(),
        is_sealed ? &place.head().side(side).context : (side == Side::key ? &key_rows_ : &value_rows_)};
  }
  pages_.push_back(view);
  return {};
}

Status DeviceHeadPages::add_protected(const Place& place, int n_sealed) {
  protected_tokens_ = protected_tokens(place.step, place.slice, place.layer, place.kv_head, n_sealed);
  const auto n = static_cast<int>(protected_tokens_.size());
  const bool by_score = protects_by_score(place.step.plan());
  for (int row = 0; row < n; row += kPageTokens) {
    const PageEntry entry = by_score
                                ? place.step.next_protection(place.slice).pages[row / kPageTokens].entry()
                                : place.step.sink(place.slice);
    KVANT_RETURN_IF_ERROR(add(place, entry,
                              {.n_tokens = std::min(kPageTokens, n - row),
                               .is_protected = true,
                               .protected_tokens = protected_tokens_.data() + row}));
  }
  return {};
}

Status DeviceHeadPages::read(const Step& step, int slice, int layer, int kv_head, int first_visible,
                             int n_sealed) {
  const Place place{step, slice, layer, kv_head};
  const PageLedger& ledger = step.ledger(slice);
  pages_.clear();
  bytes_.clear();
  for (const Side side : kSides) {
    const PageContext& context = place.head().side(side).context;
    (side == Side::key ? key_rows_ : value_rows_) = {context.head_dim, context.constants, {}};
  }
  const std::vector<int> left_out = protected_tokens(step, slice, layer, kv_head, n_sealed);
  for (int page = first_visible / kPageTokens; page < n_sealed; ++page) {
    PageView view{.first_token = page * kPageTokens, .n_tokens = kPageTokens};
    for (auto token = std::lower_bound(left_out.begin(), left_out.end(), view.first_token);
         token != left_out.end() && *token < view.first_token + kPageTokens; ++token)
      view.masked.set(*token - view.first_token);
    KVANT_RETURN_IF_ERROR(add(place, ledger.sealed(page), view));
  }
  KVANT_RETURN_IF_ERROR(add_protected(place, n_sealed));
  for (int page = std::max(n_sealed, first_visible / kPageTokens); page * kPageTokens < ledger.end();
       ++page) {
    PageView view{.first_token = page * kPageTokens};
    view.n_tokens = std::min(kPageTokens, ledger.end() - view.first_token);
    KVANT_RETURN_IF_ERROR(add(place, ledger.tail(page), view));
  }
  return {};
}

}  // namespace kvant
