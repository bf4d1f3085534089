#include "cache/device_constants.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/float16.h"
#include "cache/device_layout.h"
#include "cache/feature_map.h"
#include "format/error_metric.h"

namespace kvant {
namespace {

constexpr std::size_t kAlignment = 128;  // numbers that a head's codebook begins at a multiple of
constexpr float kLargestHalf = 65504;

// The centroids of a head's side; none where its format has no codebook.
std::span<const float> codebook_of(const SidePlan& side) {
  if (!side.sealed->codebook_shape()) return {};
  return side.context.constants.find(side.sealed->needed_constants().front());
}

// The metric of errors of a head's K; nothing where its format doesn't shape them, or no queries are known.
std::span<const float> metric_of(const SidePlan& keys) {
  if (!keys.sealed->shapes_errors()) return {};
  return keys.context.constants.find(kQueryMetric);
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
      for (int head = 0; head < g.n_kv_heads; ++head)
        books.stride = std::max(books.stride, codebook_of(plan.head(layer, head).side(side)).size());
      books.stride = (books.stride + kAlignment - 1) / kAlignment * kAlignment;
      numbers.resize(numbers.size() + books.stride * g.n_kv_heads);
      for (int head = 0; head < g.n_kv_heads; ++head) {
        const std::span<const float> book = codebook_of(plan.head(layer, head).side(side));
        if (std::any_of(book.begin(), book.end(), [](float x) { return !(std::abs(x) <= kLargestHalf); })) {
          return error(
              "recipe '{}': the codebook of layer {}, KV head {} has centroids beyond {}, and {} keeps them "
              "in "
              "half precision: use --device cpu",
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

// A head without one has weights of 0.
Status DeviceConstants::bring_metrics(const Plan& plan) {
  const Geometry& g = plan.geometry;
  std::vector<FeedbackStep> steps;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const std::size_t first = steps.size();
    for (int head = 0; head < g.n_kv_heads; ++head) {
      const std::span<const float> directions = metric_of(plan.head(layer, head).k);
      if (directions.empty()) continue;
      const ErrorMetric metric(directions);
      steps.resize(first + std::size_t{1} * g.n_kv_heads * g.head_dim);
      std::copy(metric.steps().begin(), metric.steps().end(),
                steps.begin() + static_cast<std::ptrdiff_t>(first) + std::ptrdiff_t{1} * head * g.head_dim);
    }
    metrics_.push_back(steps.size() > first ? first * sizeof(FeedbackStep) / sizeof(float) : kNowhere);
  }
  auto memory = bring(steps.data(), steps.size() * sizeof steps[0], plan);
  if (!memory.ok()) return memory.error();
  metric_memory_ = std::move(memory).value();
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
      numbers.resize(first + size * g.n_kv_heads);
      for (int head = 0; head < g.n_kv_heads; ++head) {
        const HeadPlan& of_head = plan.head(layer, head);
        if (!of_head.corrected) continue;
        const std::span<const float> maps = of_head.k.context.constants.find(name);
        KVANT_CHECK(maps.size() == size, "feature maps of another size");
        std::copy(maps.begin(), maps.end(),
                  numbers.begin() + static_cast<std::ptrdiff_t>(first + head * size));
      }
    };
    add(maps_.back().queries, kQueryAdapter, g.group(/*layer=*/0) * one);
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
  if (metrics_[layer] != kNowhere)
    at_layer.key_metrics = reinterpret_cast<const float*>(metric_memory_.get()) + metrics_[layer];
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
