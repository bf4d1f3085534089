#include "cache/device_constants.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/float16.h"
#include "base/linear_correction.h"
#include "cache/device_layout.h"
#include "format/page_metric.h"
#include "recipe/constant_needs.h"

namespace kvant {
namespace {

constexpr std::size_t kAlignment = 128;  // A head's codebook begins at a multiple of this many numbers.
constexpr float kLargestHalf = 65504;

// Returns the centroids of a head's side. The span is empty if the format has no codebook.
std::span<const float> codebook_of(const SidePlan& side) {
  if (!side.sealed->codebook_shape()) return {};
  return side.context.constants.find(side.sealed->needed_constants().front());
}

// Returns the metric by which errors of a head's K are shaped. The span is empty if the format shapes no
// errors, or if no queries are known.
std::span<const float> metric_of(const SidePlan& keys) {
  if (!keys.sealed->shapes_errors()) return {};
  return keys.context.constants.find(kPageMetric);
}

// Returns what the transform makes of unit vectors as queries, [d, d].
std::vector<float> basis_of(const Transform& transform, int d) {
  std::vector<float> units(static_cast<std::size_t>(d) * d, 0.0F);
  for (int i = 0; i < d; ++i) units[static_cast<std::size_t>(i) * d + i] = 1;
  transform.query({units.data(), d, d}, nullptr);
  return units;
}

// Holds the metrics of a layer, in the order of kvant_page_metrics.
struct LayerMetrics {
  std::vector<float> directions, turns;
  std::vector<float> bases;  // [n_kv_heads or 1][d][d]
};

// The result is empty if no head has a metric.
LayerMetrics metrics_of(const Plan& plan, int layer) {
  const Geometry& g = plan.geometry;
  const int d = g.dim(layer);
  const std::size_t of_head = static_cast<std::size_t>(d) * kMetricRank;
  LayerMetrics all;
  bool alike = true;
  for (int head = 0; head < g.kv_heads(layer); ++head) {
    const SidePlan& keys = plan.head(layer, head).k;
    const std::span<const float> constant = metric_of(keys);
    const std::vector<float> basis = basis_of(keys.transform, d);
    all.bases.insert(all.bases.end(), basis.begin(), basis.end());
    alike = alike && std::equal(basis.begin(), basis.end(), all.bases.begin());
    if (constant.empty()) {
      all.directions.insert(all.directions.end(), of_head, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    all.directions.insert(all.directions.end(), constant.begin(),
                          constant.begin() + static_cast<std::ptrdiff_t>(of_head));
    all.turns.assign(constant.begin() + static_cast<std::ptrdiff_t>(of_head), constant.end());
  }
  if (all.turns.empty()) return {};
  if (alike) all.bases.resize(static_cast<std::size_t>(d) * d);
  return all;
}

}  // namespace

DeviceConstants::DeviceConstants(std::shared_ptr<PageDevice> device)
    : device_(std::move(device)),
      codebook_memory_(nullptr, {device_.get()}),
      metric_memory_(nullptr, {device_.get()}),
      map_memory_(nullptr, {device_.get()}),
      sink_logits_(nullptr, {device_.get()}) {}

Result<std::shared_ptr<const DeviceConstants>> DeviceConstants::make(std::shared_ptr<PageDevice> device,
                                                                     const Plan& plan) {
  std::shared_ptr<DeviceConstants> made(new DeviceConstants(std::move(device)));
  KVANT_RETURN_IF_ERROR(made->bring_codebooks(plan));
  KVANT_RETURN_IF_ERROR(made->bring_metrics(plan));
  KVANT_RETURN_IF_ERROR(made->bring_maps(plan));
  KVANT_RETURN_IF_ERROR(made->bring_sink_logits(plan));
  return std::shared_ptr<const DeviceConstants>(std::move(made));
}

Status DeviceConstants::bring_codebooks(const Plan& plan) {
  const Geometry& g = plan.geometry;
  std::vector<std::uint16_t> numbers;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (const Side side : kSides) {
      Codebooks books{numbers.size(), 0};
      for (int head = 0; head < g.kv_heads(layer); ++head)
        books.stride = std::max(books.stride, codebook_of(plan.head(layer, head).side(side)).size());
      books.stride = (books.stride + kAlignment - 1) / kAlignment * kAlignment;
      numbers.resize(numbers.size() + books.stride * g.kv_heads(layer));
      for (int head = 0; head < g.kv_heads(layer); ++head) {
        const std::span<const float> book = codebook_of(plan.head(layer, head).side(side));
        if (std::any_of(book.begin(), book.end(), [](float x) { return !(std::abs(x) <= kLargestHalf); })) {
          return error(
              "recipe '{}': the codebook of layer {}, KV head {} has centroids beyond {}, but {} stores them "
              "in half precision: use --device cpu",
              label(plan.recipe), layer, head, kLargestHalf, device_->name());
        }
        f16_row_from_float(book.data(), numbers.data() + books.offset + head * books.stride, book.size());
      }
      codebooks_.push_back(books);
    }
  }
  auto memory = bring(numbers.data(), numbers.size() * sizeof numbers[0], plan);
  if (!memory.ok()) return memory.error();
  codebook_memory_ = std::move(memory).value();
  return {};
}

// Most recipes use one basis in all layers. Neighbouring layers with equal bases share it.
Status DeviceConstants::bring_metrics(const Plan& plan) {
  const Geometry& g = plan.geometry;
  struct Places {
    std::size_t directions = kNowhere, turns = 0, bases = 0;
    std::int64_t basis_stride = 0;
  };
  std::vector<float> numbers, last_bases;
  std::vector<Places> places(g.n_layers);
  std::size_t last_place = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const LayerMetrics metrics = metrics_of(plan, layer);
    if (metrics.turns.empty()) continue;
    const auto add = [&](const std::vector<float>& more) {
      const std::size_t first = numbers.size();
      numbers.insert(numbers.end(), more.begin(), more.end());
      return first;
    };
    if (metrics.bases != last_bases) {
      last_place = add(metrics.bases);
      last_bases = metrics.bases;
    }
    const std::int64_t square = std::int64_t{g.dim(layer)} * g.dim(layer);
    const bool alike = static_cast<std::int64_t>(metrics.bases.size()) == square;
    places[layer] = {add(metrics.directions), add(metrics.turns), last_place, alike ? 0 : square};
  }
  auto memory = bring(numbers.data(), numbers.size() * sizeof numbers[0], plan);
  if (!memory.ok()) return memory.error();
  metric_memory_ = std::move(memory).value();
  const auto* first = reinterpret_cast<const float*>(metric_memory_.get());
  for (const Places& at : places) {
    kvant_page_metrics& metrics = metrics_.emplace_back();
    if (at.directions == kNowhere) continue;
    metrics = {sizeof metrics, first + at.directions, first + at.turns, first + at.bases, at.basis_stride};
  }
  return {};
}

Status DeviceConstants::bring_maps(const Plan& plan) {
  const Geometry& g = plan.geometry;
  const std::size_t one = feature_map_weights(g.head_dim);
  std::vector<float> numbers;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    maps_.emplace_back();
    if (!is_corrected(plan, layer)) continue;
    const auto add = [&](std::size_t& first, const char* name, std::size_t size) {
      first = numbers.size();
      numbers.resize(first + size * g.kv_heads(layer));
      for (int head = 0; head < g.kv_heads(layer); ++head) {
        const HeadPlan& of_head = plan.head(layer, head);
        if (!of_head.corrected) continue;
        const std::span<const float> maps = of_head.k.context.constants.find(name);
        KVANT_CHECK(maps.size() == size, "feature maps of a different size");
        std::copy(maps.begin(), maps.end(),
                  numbers.begin() + static_cast<std::ptrdiff_t>(first + head * size));
      }
    };
    add(maps_.back().queries, kQueryAdapter, g.group(layer) * one);
    add(maps_.back().keys, kKeyAdapter, one);
  }
  auto memory = bring(numbers.data(), numbers.size() * sizeof numbers[0], plan);
  if (!memory.ok()) return memory.error();
  map_memory_ = std::move(memory).value();
  return {};
}

Status DeviceConstants::bring_sink_logits(const Plan& plan) {
  const std::vector<float>& logits = plan.geometry.sink_logits;
  n_heads_ = plan.geometry.n_heads;
  auto memory = bring(logits.data(), logits.size() * sizeof logits[0], plan);
  if (!memory.ok()) return memory.error();
  sink_logits_ = std::move(memory).value();
  return {};
}

Result<DeviceMemory> DeviceConstants::bring(const void* numbers, std::size_t bytes, const Plan& plan) {
  if (bytes == 0) return DeviceMemory(nullptr, {device_.get()});
  device_->enter();
  DeviceMemory memory = allocate_on(*device_, bytes);
  if (memory == nullptr) {
    return shortage("out of memory on {}: no room for the {:.1f} MiB of constants of {}", device_->name(),
                    static_cast<double>(bytes) / (1 << 20), label(plan.recipe));
  }
  device_->upload(memory.get(), numbers, bytes);
  return memory;
}

void DeviceConstants::add_to(kvant_decode_layer& at_layer, int layer) const {
  if (sink_logits_ != nullptr)
    at_layer.sink_logits =
        reinterpret_cast<const float*>(sink_logits_.get()) + std::ptrdiff_t{layer} * n_heads_;
  const auto* numbers = reinterpret_cast<const std::uint16_t*>(codebook_memory_.get());
  if (const Codebooks& keys = codebooks_[2 * layer]; keys.stride > 0) {
    at_layer.key_codebooks = numbers + keys.offset;
    at_layer.key_codebook_stride = static_cast<std::int64_t>(keys.stride);
  }
  if (const Codebooks& values = codebooks_[2 * layer + 1]; values.stride > 0) {
    at_layer.value_codebooks = numbers + values.offset;
    at_layer.value_codebook_stride = static_cast<std::int64_t>(values.stride);
  }
}

}  // namespace kvant
