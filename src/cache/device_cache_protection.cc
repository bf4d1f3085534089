// What scores protect of the sequences of a cache whose pages lie on a device.
#include <algorithm>

#include "cache/cache.h"
#include "cache/page_counts.h"

namespace kvant {

const DeviceProtection& Step::protection(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).protection;
}

const DeviceProtection& Step::next_protection(int slice) const {
  return cache_.sequences_.at(slices_[slice].sequence).next_protection;
}

// Entries for all that a sequence of these lengths may have. False where memory is exhausted.
bool Cache::take_protection(int n_tokens, int n_sealed, DeviceProtection& protection) {
  protection.tokens = std::make_shared<ProtectedTokens>();
  protection.tokens->heads.resize(static_cast<std::size_t>(plan_->geometry.n_all_kv_heads()));
  for (int i = 0; i < protected_pages(*plan_, n_sealed); ++i) {
    protection.pages.emplace_back(device_->beside(), device_->beside().take(kProtectedRoom));
    if (!protection.pages.back().entry().held()) return false;
  }
  if (open_observers(n_tokens) == 0) return true;
  protection.observers = EntryHold(device_->beside(), device_->beside().take(kObserversRoom));
  return protection.observers.entry().held();
}

// What a step changes of the host's part it changes in a copy; on the device it writes rows that no committed
// sequence counts on.
bool Cache::reserve_protection(Sequence& sequence) {
  const PageLedger& ledger = *sequence.ledgers.front();
  const DeviceProtection& now = sequence.protection;
  DeviceProtection next;
  const bool changes =
      ledger.end() / kPageTokens > ledger.length() / kPageTokens || ledger.end_sealed() > ledger.n_sealed();
  next.tokens = now.tokens;
  if (now.tokens == nullptr) {
    next.tokens = std::make_shared<ProtectedTokens>();
    next.tokens->heads.resize(static_cast<std::size_t>(plan_->geometry.n_all_kv_heads()));
  } else if (changes) {
    next.tokens = std::make_shared<ProtectedTokens>(*now.tokens);
  }
  if (!reserve_protected_rows(sequence, next) || !reserve_observers(sequence, next)) return false;
  sequence.next_protection = std::move(next);
  return true;
}

// Rows of a step that seals go behind those that there are: to entries that nobody else holds.
bool Cache::reserve_protected_rows(const Sequence& sequence, DeviceProtection& next) {
  const PageLedger& ledger = *sequence.ledgers.front();
  const DeviceProtection& now = sequence.protection;
  const bool seals = ledger.end_sealed() > ledger.n_sealed();
  const std::size_t n_pages = seals ? protected_pages(*plan_, ledger.end_sealed()) : now.pages.size(),
                    first_written = next.tokens->fewest_rows(*plan_) / kPageTokens;
  for (std::size_t i = 0; i < std::max(n_pages, now.pages.size()); ++i) {
    const bool is_there = i < now.pages.size();
    const bool is_written = seals && i >= first_written;
    if (is_there && !(is_written && device_->beside().shared(now.pages[i].entry()))) {
      next.pages.push_back(now.pages[i].share());
      continue;
    }
    next.pages.emplace_back(device_->beside(), device_->beside().take(kProtectedRoom));
    if (!next.pages.back().entry().held()) return false;
    if (is_there) device_->beside().copy(now.pages[i].entry(), kPageTokens, next.pages.back().entry());
  }
  return true;
}

bool Cache::reserve_observers(const Sequence& sequence, DeviceProtection& next) {
  const PageLedger& ledger = *sequence.ledgers.front();
  const DeviceProtection& now = sequence.protection;
  if (open_observers(ledger.end()) == 0) return true;
  const bool stays = ledger.end() / kPageTokens == ledger.length() / kPageTokens;
  const int page_end = (ledger.end() / kPageTokens + 1) * kPageTokens;
  next.first_observer = first_observer_of(page_end, ledger.length(), stays ? now.first_observer : -1);
  const bool goes_on = stays && now.observers.entry().held();
  if (goes_on && !device_->beside().shared(now.observers.entry())) {
    next.observers = now.observers.share();
    return true;
  }
  next.observers = EntryHold(device_->beside(), device_->beside().take(kObserversRoom));
  if (!next.observers.entry().held()) return false;
  if (goes_on) device_->beside().copy(now.observers.entry(), kObservers, next.observers.entry());
  return true;
}

// The sink's part of protected rows counts as the sink's; scores and lists are kept by the host.
void Cache::add_protected_bytes(const DeviceProtection& protection, CacheBytes& bytes) const {
  if (protection.tokens == nullptr) return;
  const Geometry& g = plan_->geometry;
  std::int64_t n_rows = 0, n_sink = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const ProtectedTokens::Head& head = protection.tokens->heads[g.head_index(layer, h)];
      const auto n = static_cast<int>(head.tokens.size());
      n_rows += n;
      n_sink += std::min(plan_->layers[layer].sink, n);
      int n_masked = 0;
      for (int i = 0; i < n; ++i)
        n_masked += i == 0 || head.tokens[i] / kPageTokens != head.tokens[i - 1] / kPageTokens ? 1 : 0;
      bytes.protected_tokens += HeadState::list_bytes(n, n_masked) + head.scores.bytes();
    }
  }
  const std::int64_t in_rows =
      static_cast<std::int64_t>(protection.pages.size()) * device_->beside().entry_bytes(kProtectedRoom);
  const std::int64_t of_sink = n_rows > 0 ? in_rows * n_sink / n_rows : 0;
  bytes.sink += of_sink;
  bytes.protected_tokens += in_rows - of_sink;
  if (protection.observers.entry().held()) bytes.tail += device_->beside().entry_bytes(kObserversRoom);
}

}  // namespace kvant
