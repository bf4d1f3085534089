// What scores protect, of a sequence on a device, as heads of caches in host memory write it
// (HeadState::save) and read it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "cache/device_image.h"
#include "cache/protected_rows.h"

namespace kvant {

// The place of a layer's observers in the bytes of their entry: queries, and their log-sum-exps.
DeviceImage::Observers DeviceImage::observers_in(std::vector<std::byte>& bytes, int layer) const {
  const EntryLayout::Layer& of_layer = store_.beside().layout(kObserversRoom).layers[layer];
  return {reinterpret_cast<float*>(bytes.data() + of_layer.place(0, Side::key)),
          reinterpret_cast<float*>(bytes.data() + of_layer.place(0, Side::value))};
}

// Rows of a head as protected pages hold them: entries[i] has those from 128 i on.
void DeviceImage::write_protected(ByteWriter& to, std::vector<std::vector<std::byte>>& entries,
                                  const ProtectedTokens::Head& head, int layer, int kv_head, int n_sealed) {
  const auto n = static_cast<int>(head.tokens.size());
  to.write<std::int32_t>(n);
  to.write_all(std::span<const int>(head.tokens));
  for (const Side side : kSides) {
    for (int row = 0; row < n; row += kPageTokens) {
      std::swap(bytes_, entries[row / kPageTokens]);
      write_rows(to, kProtectedRoom, layer, kv_head, side, std::min(kPageTokens, n - row));
      std::swap(bytes_, entries[row / kPageTokens]);
    }
  }
  std::vector<std::pair<int, TokenMask>> masks;
  for (int page = 0; page < n_sealed; ++page) {
    const TokenMask mask = ProtectedTokens::mask(head, page);
    if (!mask.empty()) masks.emplace_back(page, mask);
  }
  to.write(static_cast<std::int32_t>(masks.size()));
  for (const auto& [page, mask] : masks) {
    to.write<std::int32_t>(page);
    to.write(mask.words);
  }
}

// Queries of caches in host memory have the softmax's scale in them.
void DeviceImage::write_scores(ByteWriter& to, std::vector<std::byte>& observers, TokenScores scores,
                               const ObservedTokens& observed, int layer, int kv_head) const {
  const Geometry& g = plan_.geometry;
  const int d = g.head_dim, group = g.group(layer);
  scores.reserve(observed.end, group, d);
  std::vector<float> q(d);
  for (int token = observed.first; token >= 0 && token < observed.end; ++token) {
    const Observers rows = observers_in(observers, layer);
    const int row = token % kPageTokens - (kPageTokens - kObservers);
    for (int i = 0; i < group; ++i) {
      const std::ptrdiff_t at = std::ptrdiff_t{row} * g.n_heads + kv_head * group + i;
      for (int c = 0; c < d; ++c) q[c] = rows.q[at * d + c] * g.softmax_scale;
      scores.observe({token, q, /*offset=*/0, rows.lse[at], /*sum=*/1}, group);
    }
  }
  scores.save(to);
}

Status DeviceImage::write_protection(ByteWriter& to, int n_sealed, int n_tokens,
                                     const DeviceProtection& protection) {
  const Geometry& g = plan_.geometry;
  std::vector<std::vector<std::byte>> entries;
  for (const EntryHold& rows : protection.pages) {
    KVANT_RETURN_IF_ERROR(fetch(store_.beside(), rows.entry()));
    entries.push_back(bytes_);
  }
  std::vector<std::byte> observers;
  if (protection.observers.entry().held()) {
    KVANT_RETURN_IF_ERROR(fetch(store_.beside(), protection.observers.entry()));
    observers = bytes_;
  }
  const ProtectedTokens::Head nothing;
  const ObservedTokens observed{protection.first_observer, n_tokens};
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const ProtectedTokens::Head& head =
          protection.tokens == nullptr ? nothing : protection.tokens->heads[g.head_index(layer, h)];
      write_protected(to, entries, head, layer, h, n_sealed);
      if (plan_.layers[layer].needs_scores()) write_scores(to, observers, head.scores, observed, layer, h);
    }
  }
  return {};
}

void DeviceImage::read_protected(ByteReader& from, std::vector<std::vector<std::byte>>& entries,
                                 ProtectedTokens::Head& head, int layer, int kv_head, int n_sealed) {
  const LayerPlan& rules = plan_.layers[layer];
  head.tokens = from.read_all<int>(from.read_int(0, max_protected_tokens(rules, n_sealed)));
  const auto n = static_cast<int>(head.tokens.size());
  const bool ascend =
      std::adjacent_find(head.tokens.begin(), head.tokens.end(), std::greater_equal<>()) == head.tokens.end();
  from.require(n == 0 || (ascend && head.tokens.front() >= 0 && head.tokens.back() < n_sealed * kPageTokens));
  for (const Side side : kSides) {
    for (int row = 0; from.ok() && row < n; row += kPageTokens) {
      const int n_rows = std::min(kPageTokens, n - row);
      const std::byte* rows = from.skip(std::size_t{2} * n_rows * plan_.geometry.head_dim);
      if (rows == nullptr) break;
      std::swap(bytes_, entries[row / kPageTokens]);
      read_rows(rows, kProtectedRoom, layer, kv_head, side, n_rows);
      std::swap(bytes_, entries[row / kPageTokens]);
    }
  }
  const int n_masks = from.read_int(0, n_sealed);
  for (int i = 0, last = -1; i < n_masks && from.ok(); ++i) {
    const int page = from.read_int(last + 1, n_sealed - 1);
    from.require(from.read<decltype(TokenMask::words)>() == ProtectedTokens::mask(head, page).words);
    last = page;
  }
}

// Observers are the same tokens in every head: observed.first is the first one's answer.
void DeviceImage::read_scores(ByteReader& from, std::vector<std::byte>& observers, TokenScores& scores,
                              ObservedTokens& observed, int layer, int kv_head) const {
  const Geometry& g = plan_.geometry;
  const int d = g.head_dim, group = g.group(layer);
  scores.load(from, observed.end, group, d);
  if (!from.ok()) return;
  const MatrixView<const float> q = scores.queries();
  const int first = q.rows == 0 ? -1 : scores.tokens().front();
  if (observed.first == ObservedTokens::kUnknown) observed.first = first;
  from.require(first == observed.first && q.rows == (first < 0 ? 0 : (observed.end - first) * group));
  for (int r = 0; from.ok() && r < q.rows; ++r) {
    const int token = first + r / group, row = token % kPageTokens - (kPageTokens - kObservers);
    from.require(scores.tokens()[r] == token && row >= 0);
    if (!from.ok()) return;
    const Observers rows = observers_in(observers, layer);
    const std::ptrdiff_t at = std::ptrdiff_t{row} * g.n_heads + kv_head * group + r % group;
    for (int c = 0; c < d; ++c) rows.q[at * d + c] = q.row(r)[c] / g.softmax_scale;
    rows.lse[at] = scores.maxima()[r] + std::log(scores.sums()[r]);
  }
  scores.forget_observers();
}

void DeviceImage::read_protection(ByteReader& from, int n_sealed, int n_tokens,
                                  DeviceProtection& protection) {
  const Geometry& g = plan_.geometry;
  std::vector<std::vector<std::byte>> entries(protection.pages.size());
  for (std::vector<std::byte>& entry : entries) entry.resize(store_.beside().layout(kProtectedRoom).bytes);
  std::vector<std::byte> observers(
      protection.observers.entry().held() ? store_.beside().layout(kObserversRoom).bytes : 0);
  ObservedTokens observed{ObservedTokens::kUnknown, n_tokens};
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.n_kv_heads && from.ok(); ++h) {
      ProtectedTokens::Head& head = protection.tokens->heads[g.head_index(layer, h)];
      read_protected(from, entries, head, layer, h, n_sealed);
      if (plan_.layers[layer].needs_scores()) read_scores(from, observers, head.scores, observed, layer, h);
    }
  }
  if (!from.ok()) return;
  for (std::size_t i = 0; i < entries.size(); ++i)
    store_.beside().upload(entries[i].data(), protection.pages[i].entry());
  protection.pages.resize(pages_for(protection.tokens->most_rows()));
  protection.first_observer = observed.first;
  if (observed.first < 0) return protection.observers.reset();
  store_.beside().upload(observers.data(), protection.observers.entry());
}

}  // namespace kvant
