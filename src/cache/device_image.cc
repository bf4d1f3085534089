#include "cache/device_image.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache/correction_state.h"

namespace kvant {

namespace {

constexpr const char* kPlain = "bf16";

bool are_alike(const std::vector<PageMask>& a, const std::vector<PageMask>& b) {
  return std::ranges::equal(a, b, [](const PageMask& x, const PageMask& y) {
    return x.page == y.page && x.mask.words == y.mask.words;
  });
}

}  // namespace

DeviceImage::DeviceImage(DevicePageStore& store) : plan_(store.plan()), store_(store) {
  page_.resize(std::size_t{2} * kPageTokens * plan_.geometry.head_dim);
  moved_.resize(page_.size());
}

Result<DeviceImage::Bytes> DeviceImage::fetch(DeviceEntryStore& entries, PageEntry entry) const {
  Bytes bytes;
  if (!entry.held()) return bytes;
  bytes.resize(entries.layout(entry.room).bytes);
  KVANT_RETURN_IF_ERROR(entries.download(entry, bytes.data()));
  return bytes;
}

void DeviceImage::to_image(const std::byte* page, std::size_t page_bytes, Side side, int d, int n,
                           std::byte* rows) {
  std::memcpy(moved_.data(), page, page_bytes);
  store_.device()->page_to_host(kPlain, side, d, moved_.data(), page_.data());
  std::memcpy(rows, page_.data(), std::size_t{2} * n * d);
}

void DeviceImage::from_image(const std::byte* rows, int n, Side side, int d, std::byte* page,
                             std::size_t page_bytes) {
  std::ranges::fill(page_, std::byte{});
  std::memcpy(page_.data(), rows, std::size_t{2} * n * d);
  store_.device()->page_from_host(kPlain, side, d, page_.data(), moved_.data());
  std::memcpy(page, moved_.data(), page_bytes);
}

// --- pages ---

void DeviceImage::save_part(const std::byte* entry, const PagePart& part, std::byte* canonical) {
  const EntryLayout::Layer& of_layer = store_.pages(part.layer).layout(part.entry.room).layers[part.layer];
  const std::byte* page = entry + of_layer.place(part.kv_head, part.side);
  const int d = plan_.geometry.dim(part.layer);
  if (part.entry.room != kSealedRoom)
    return to_image(page, of_layer.bytes(part.kv_head, part.side), part.side, d, part.n_rows, canonical);
  const Format& format = *plan_.head(part.layer, part.kv_head).side(part.side).sealed;
  store_.device()->page_to_host(format.name(), part.side, d, page, canonical);
}

void DeviceImage::load_part(const std::byte* canonical, const PagePart& part, std::byte* entry) {
  const EntryLayout::Layer& of_layer = store_.pages(part.layer).layout(part.entry.room).layers[part.layer];
  std::byte* page = entry + of_layer.place(part.kv_head, part.side);
  const int d = plan_.geometry.dim(part.layer);
  if (part.entry.room != kSealedRoom)
    return from_image(canonical, part.n_rows, part.side, d, page, of_layer.bytes(part.kv_head, part.side));
  const Format& format = *plan_.head(part.layer, part.kv_head).side(part.side).sealed;
  store_.device()->page_from_host(format.name(), part.side, d, canonical, page);
}

// --- auxiliary data ---

template <class Move>
void DeviceImage::for_each_row_page(int layer, int kv_head, Side side, int n, const Move& move) const {
  const EntryLayout::Layer& of_layer = store_.auxiliary().layout(kProtectedRoom).layers[layer];
  const std::size_t page_bytes = of_layer.bytes(kv_head, side),
                    row_bytes = std::size_t{2} * plan_.geometry.dim(layer);
  const auto capacity = static_cast<int>(page_bytes / row_bytes);
  for (int row = 0; row < n; row += capacity)
    move(row / capacity, of_layer.place(kv_head, side), page_bytes, std::min(capacity, n - row),
         row * row_bytes);
}

void DeviceImage::add_to(HeadImage& image, const ImagedHead& head, const Entries& entries) {
  const int layer = head.layer, h = head.kv_head, d = plan_.geometry.dim(layer);
  const auto n = static_cast<int>(image.chosen.tokens.size());
  for (const Side side : kSides) {
    Bytes& rows = image.rows[static_cast<int>(side)];
    rows.resize(std::size_t{2} * n * d);
    for_each_row_page(
        layer, h, side, n, [&](int entry, std::size_t place, std::size_t bytes, int n_rows, std::size_t at) {
          to_image(entries.rows[entry].data() + place, bytes, side, d, n_rows, rows.data() + at);
        });
  }
  if (plan_.layers[layer].needs_scores())
    observe(entries.observers, entries.first_observer, head, image.observers);
  if (!plan_.head(layer, h).corrected) return;
  image.sums = sums(entries.sums, layer, h);
  image.checkpoint_sums = sums(entries.checkpoint_sums, layer, h);
}

bool DeviceImage::put(const HeadImage& image, const ImagedHead& head, Entries& entries) {
  const int layer = head.layer, h = head.kv_head, d = plan_.geometry.dim(layer);
  if (!are_alike(image.chosen.masks, masks_of(image.chosen.tokens))) return false;
  for (const Side side : kSides) {
    const Bytes& rows = image.rows[static_cast<int>(side)];
    for_each_row_page(layer, h, side, static_cast<int>(image.chosen.tokens.size()),
                      [&](int entry, std::size_t place, std::size_t bytes, int n_rows, std::size_t at) {
                        from_image(rows.data() + at, n_rows, side, d, entries.rows[entry].data() + place,
                                   bytes);
                      });
  }
  if (plan_.layers[layer].needs_scores() && !put_observers(image.observers, head, entries)) return false;
  return put_sums(image.sums, layer, h, entries.sums) &&
         put_sums(image.checkpoint_sums, layer, h, entries.checkpoint_sums);
}

// On the device, z follows S.
std::vector<float> DeviceImage::sums(const Bytes& entry, int layer, int kv_head) const {
  if (entry.empty()) return {};
  const EntryLayout::Layer& of_layer = store_.auxiliary().layout(kSumsRoom).layers[layer];
  const int d = plan_.geometry.dim(layer);
  std::vector<float> on_device(of_layer.bytes(kv_head, Side::key) / sizeof(float)), moved(on_device.size());
  std::memcpy(on_device.data(), entry.data() + of_layer.place(kv_head, Side::key),
              of_layer.bytes(kv_head, Side::key));
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    std::copy_n(on_device.begin() + f * d, d, moved.begin() + f * (d + 1));
    moved[f * (d + 1) + d] = on_device[kCorrectionFeatures * d + f];
  }
  return moved;
}

bool DeviceImage::put_sums(const std::vector<float>& sums, int layer, int kv_head, Bytes& entry) const {
  if (sums.empty()) return true;
  if (entry.empty()) return false;
  const EntryLayout::Layer& of_layer = store_.auxiliary().layout(kSumsRoom).layers[layer];
  const int d = plan_.geometry.dim(layer);
  std::vector<float> moved(sums.size());
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    std::copy_n(sums.begin() + f * (d + 1), d, moved.begin() + f * d);
    moved[kCorrectionFeatures * d + f] = sums[f * (d + 1) + d];
  }
  std::memcpy(entry.data() + of_layer.place(kv_head, Side::key), moved.data(), moved.size() * sizeof(float));
  return true;
}

namespace {

// Locates an observing query of one query head in a layer's entry. The place of the keys holds the numbers of
// the query, and the place of the values its LSE. The device's queries lack the softmax scale, which queries
// of images include.
struct ObserverPlace {
  std::size_t q, lse;
};
ObserverPlace place_of(const EntryLayout::Layer& of_layer, const Geometry& g, int token, int query_head) {
  const int row = token % kPageTokens - (kPageTokens - kObservers);
  const std::size_t at = static_cast<std::size_t>(row) * g.n_heads + query_head;
  return {of_layer.place(0, Side::key) + at * g.head_dim * sizeof(float),
          of_layer.place(0, Side::value) + at * sizeof(float)};
}

}  // namespace

void DeviceImage::observe(const Bytes& entry, int first, const ImagedHead& head, Observers& observers) const {
  const Geometry& g = plan_.geometry;
  const EntryLayout::Layer& of_layer = store_.auxiliary().layout(kObserversRoom).layers[head.layer];
  const int d = g.head_dim, group = g.group(head.layer);
  observers.reserve(group, d);
  std::vector<float> q(d);
  for (int token = first; token >= 0 && token < head.n_tokens; ++token) {
    for (int i = 0; i < group; ++i) {
      const ObserverPlace place = place_of(of_layer, g, token, head.kv_head * group + i);
      float lse = 0;
      std::memcpy(q.data(), entry.data() + place.q, d * sizeof(float));
      std::memcpy(&lse, entry.data() + place.lse, sizeof lse);
      for (float& x : q) x *= g.softmax_scale;
      observers.observe({token, q, /*offset=*/0, lse, /*sum=*/1}, group);
    }
  }
}

bool DeviceImage::put_observers(const Observers& observers, const ImagedHead& head, Entries& entries) const {
  const Geometry& g = plan_.geometry;
  const EntryLayout::Layer& of_layer = store_.auxiliary().layout(kObserversRoom).layers[head.layer];
  const int group = g.group(head.layer);
  const MatrixView<const float> q = observers.queries();
  const int first = q.rows == 0 ? -1 : observers.tokens().front();
  if (entries.first_observer == Entries::kUnknown) entries.first_observer = first;
  if (first != entries.first_observer || q.rows != (first < 0 ? 0 : (head.n_tokens - first) * group))
    return false;
  std::vector<float> unscaled(g.head_dim);
  for (int r = 0; r < q.rows; ++r) {
    const int token = first + r / group;
    if (observers.tokens()[r] != token || token % kPageTokens < kPageTokens - kObservers) return false;
    const ObserverPlace place = place_of(of_layer, g, token, head.kv_head * group + r % group);
    const float lse = observers.maxima()[r] + std::log(observers.sums()[r]);
    for (int c = 0; c < g.head_dim; ++c) unscaled[c] = q.row(r)[c] / g.softmax_scale;
    std::memcpy(entries.observers.data() + place.q, unscaled.data(), unscaled.size() * sizeof(float));
    std::memcpy(entries.observers.data() + place.lse, &lse, sizeof lse);
  }
  return true;
}

}  // namespace kvant
