#include "cache/device_image.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "cache/correction_state.h"
#include "cache/page_counts.h"
#include "cache/protected_rows.h"

namespace kvant {

namespace {

constexpr const char* kPlain = "bf16";

TokenMask first_tokens(int n) {
  TokenMask mask;
  for (int t = 0; t < n; ++t) mask.set(t);
  return mask;
}

}  // namespace

DeviceImage::DeviceImage(const Plan& plan, DevicePageStore& store) : plan_(plan), store_(store) {
  page_.resize(std::size_t{2} * kPageTokens * plan.geometry.head_dim);
  moved_.resize(page_.size());
}

template <class Visit>
void DeviceImage::for_each_side(int group, const Visit& visit) const {
  for (const int layer : store_.layers(group)) {
    for (int head = 0; head < plan_.geometry.kv_heads(layer); ++head) {
      for (const Side side : kSides) visit(layer, head, side);
    }
  }
}

int DeviceImage::page_rows(int room, int layer) const {
  const std::size_t bytes = layout(room, layer).layers[layer].bytes(0, Side::key);
  return static_cast<int>(bytes / (std::size_t{2} * plan_.geometry.dim(layer)));
}

std::byte* DeviceImage::place(int room, int layer, int head, Side side) {
  return bytes_.data() + layout(room, layer).layers[layer].place(head, side);
}

Status DeviceImage::fetch(DeviceEntryStore& store, PageEntry entry) {
  bytes_.assign(store.layout(entry.room).bytes, std::byte{});
  return store.download(entry, bytes_.data());
}

void DeviceImage::write_rows(ByteWriter& to, int room, int layer, int head, Side side, int n) {
  const int d = plan_.geometry.dim(layer);
  std::memcpy(moved_.data(), place(room, layer, head, side), std::size_t{2} * page_rows(room, layer) * d);
  store_.device()->page_to_host(kPlain, side, d, moved_.data(), page_.data());
  const std::size_t bytes = std::size_t{2} * n * d;
  std::memcpy(to.skip(bytes), page_.data(), bytes);
}

void DeviceImage::read_rows(const std::byte* from, int room, int layer, int head, Side side, int n) {
  const int d = plan_.geometry.dim(layer);
  std::fill(page_.begin(), page_.end(), std::byte{});
  std::memcpy(page_.data(), from, std::size_t{2} * n * d);
  store_.device()->page_from_host(kPlain, side, d, page_.data(), moved_.data());
  std::memcpy(place(room, layer, head, side), moved_.data(), std::size_t{2} * page_rows(room, layer) * d);
}

// The first tokens, where they are kept, and the masks that leave them out of the first page.
void DeviceImage::write_sums(ByteWriter& to, const std::vector<std::byte>& all, int layer, int head) const {
  to.write<std::int32_t>(all.empty() ? 0 : 1);
  if (all.empty()) return;
  const EntryLayout::Layer& of_layer = store_.beside().layout(kSumsRoom).layers[layer];
  const int d = plan_.geometry.dim(layer);
  const std::size_t bytes = of_layer.bytes(head, Side::key);
  std::vector<float> sums(bytes / sizeof(float)), moved(sums.size());
  std::memcpy(sums.data(), all.data() + of_layer.place(head, Side::key), bytes);
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    std::copy_n(sums.begin() + f * d, d, moved.begin() + f * (d + 1));
    moved[f * (d + 1) + d] = sums[kCorrectionFeatures * d + f];
  }
  to.write_all(std::span<const float>(moved));
}

void DeviceImage::read_sums(ByteReader& from, std::vector<std::byte>& all, bool& any, int layer,
                            int head) const {
  if (from.read_int(0, all.empty() ? 0 : 1) == 0) return;
  any = true;
  const EntryLayout::Layer& of_layer = store_.beside().layout(kSumsRoom).layers[layer];
  const int d = plan_.geometry.dim(layer);
  const std::size_t bytes = of_layer.bytes(head, Side::key);
  const std::vector<float> sums = from.read_all<float>(bytes / sizeof(float));
  if (sums.empty()) return;
  std::vector<float> moved(sums.size());
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    std::copy_n(sums.begin() + f * (d + 1), d, moved.begin() + f * d);
    moved[kCorrectionFeatures * d + f] = sums[f * (d + 1) + d];
  }
  std::memcpy(all.data() + of_layer.place(head, Side::key), moved.data(), bytes);
}

Status DeviceImage::write_heads(ByteWriter& to, int n_sealed, const Beside& beside) {
  const Geometry& g = plan_.geometry;
  const PageEntry sink = beside.sink;
  std::vector<std::byte> sums, checkpoint;
  for (const auto& [entry, bytes] : {std::pair{beside.sums, &sums}, {beside.checkpoint_sums, &checkpoint}}) {
    if (!entry.held()) continue;
    KVANT_RETURN_IF_ERROR(fetch(store_.beside(), entry));
    *bytes = bytes_;
  }
  if (sink.held()) KVANT_RETURN_IF_ERROR(fetch(store_.beside(), sink));
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int n = n_sealed > 0 ? plan_.layers[layer].sink : 0;
    if (n > 0 && !sink.held())
      return error("cannot save a sequence of '{}' whose pages lie on {}: leave the sink out with sink=0",
                   label(plan_.recipe), store_.device()->name());
    for (int head = 0; head < g.kv_heads(layer); ++head) {
      to.write<std::int32_t>(n);
      for (int t = 0; t < n; ++t) to.write<std::int32_t>(t);
      for (const Side side : kSides) {
        if (n > 0) write_rows(to, kSinkRoom, layer, head, side, n);
      }
      to.write<std::int32_t>(n > 0 ? 1 : 0);
      if (n > 0) {
        to.write<std::int32_t>(0);
        to.write(first_tokens(n).words);
      }
      if (!plan_.head(layer, head).corrected) continue;
      write_sums(to, sums, layer, head);
      write_sums(to, checkpoint, layer, head);
    }
  }
  return {};
}

void DeviceImage::read_heads(ByteReader& from, int n_sealed, Beside& beside) {
  const Geometry& g = plan_.geometry;
  const PageEntry sink = beside.sink;
  DeviceEntryStore& store = store_.beside();
  const auto room_for = [&](PageEntry sums) {
    return std::vector<std::byte>(sums.held() ? store.layout(kSumsRoom).bytes : 0);
  };
  std::vector<std::byte> sums = room_for(beside.sums), checkpoint = room_for(beside.checkpoint_sums);
  bool any_sums = false, any_checkpoint = false;
  if (sink.held()) bytes_.assign(store.layout(kSinkRoom).bytes, std::byte{});
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int n = n_sealed > 0 ? plan_.layers[layer].sink : 0;
    from.require(n == 0 || sink.held());
    for (int head = 0; head < g.kv_heads(layer) && from.ok(); ++head) {
      from.read_int(n, n);
      for (int t = 0; t < n; ++t) from.read_int(t, t);
      for (const Side side : kSides) {
        const std::byte* rows = n > 0 ? from.skip(std::size_t{2} * n * g.dim(layer)) : nullptr;
        if (rows != nullptr) read_rows(rows, kSinkRoom, layer, head, side, n);
      }
      from.read_int(n > 0 ? 1 : 0, n > 0 ? 1 : 0);
      if (n > 0) {
        from.read_int(0, 0);
        from.require(from.read<decltype(TokenMask::words)>() == first_tokens(n).words);
      }
      if (!plan_.head(layer, head).corrected) continue;
      read_sums(from, sums, any_sums, layer, head);
      read_sums(from, checkpoint, any_checkpoint, layer, head);
    }
  }
  if (sink.held() && from.ok()) store.upload(bytes_.data(), sink);
  if (!any_sums) beside.sums = {};
  if (!any_checkpoint) beside.checkpoint_sums = {};
  if (any_sums && from.ok()) store.upload(sums.data(), beside.sums);
  if (any_checkpoint && from.ok()) store.upload(checkpoint.data(), beside.checkpoint_sums);
}

Status DeviceImage::write_page(ByteWriter& to, int group, PageEntry entry, int n_rows) {
  KVANT_RETURN_IF_ERROR(fetch(store_.of_group(group), entry));
  for_each_side(group, [&](int layer, int head, Side side) {
    if (entry.room != kSealedRoom) return write_rows(to, entry.room, layer, head, side, n_rows);
    const Format& format = *plan_.head(layer, head).side(side).sealed;
    const int d = plan_.geometry.dim(layer);
    std::byte* canonical = to.skip(format.page_bytes(d));
    store_.device()->page_to_host(format.name(), side, d, place(entry.room, layer, head, side), canonical);
  });
  return {};
}

void DeviceImage::read_page(ByteReader& from, int group, PageEntry entry, int n_rows) {
  bytes_.assign(store_.of_group(group).layout(entry.room).bytes, std::byte{});
  for_each_side(group, [&](int layer, int head, Side side) {
    const int d = plan_.geometry.dim(layer);
    if (entry.room != kSealedRoom) {
      const std::byte* rows = from.skip(std::size_t{2} * n_rows * d);
      if (rows != nullptr) read_rows(rows, entry.room, layer, head, side, n_rows);
      return;
    }
    const Format& format = *plan_.head(layer, head).side(side).sealed;
    const std::byte* canonical = from.skip(format.page_bytes(d));
    if (canonical != nullptr)
      store_.device()->page_from_host(format.name(), side, d, canonical,
                                      place(entry.room, layer, head, side));
  });
  if (from.ok()) store_.of_group(group).upload(bytes_.data(), entry);
}

// --- what scores protect, as heads of caches in host memory write it (HeadState::save) and read it ---

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
