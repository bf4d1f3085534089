#include "cache/device_image.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvant {

void DeviceImage::add_to(HeadImage& image, const ImagedHead& head, const Entries& entries) const {
  const int layer = head.layer, h = head.kv_head;
  if (plan_.layers[layer].needs_scores())
    observe(entries.observers, entries.first_observer, head, image.observers);
  if (!plan_.head(layer, h).corrected) return;
  image.sums = sums(entries.sums, layer, h);
  image.checkpoint_sums = sums(entries.checkpoint_sums, layer, h);
}

bool DeviceImage::put(const HeadImage& image, const ImagedHead& head, Entries& entries) const {
  const int layer = head.layer, h = head.kv_head;
  if (plan_.layers[layer].needs_scores() && !put_observers(image.observers, head, entries)) return false;
  return put_sums(image.sums, layer, h, entries.sums) &&
         put_sums(image.checkpoint_sums, layer, h, entries.checkpoint_sums);
}

std::vector<float> DeviceImage::sums(const Bytes& entry, int layer, int kv_head) const {
  if (entry.empty()) return {};
  const EntryLayout::Layer& of_layer = store_.auxiliary().layout(kSumsRoom).layers[layer];
  std::vector<float> sums(of_layer.bytes(kv_head, Side::key) / sizeof(float));
  std::memcpy(sums.data(), entry.data() + of_layer.place(kv_head, Side::key), sums.size() * sizeof(float));
  return sums;
}

bool DeviceImage::put_sums(const std::vector<float>& sums, int layer, int kv_head, Bytes& entry) const {
  if (sums.empty()) return true;
  if (entry.empty()) return false;
  const EntryLayout::Layer& of_layer = store_.auxiliary().layout(kSumsRoom).layers[layer];
  std::memcpy(entry.data() + of_layer.place(kv_head, Side::key), sums.data(), sums.size() * sizeof(float));
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
