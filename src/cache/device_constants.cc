#include "cache/device_constants.h"

#include <algorithm>
#include <cmath>

#include "base/float16.h"

namespace kvant {
namespace {

constexpr std::size_t kAlignment = 128;  // numbers that a head's codebook begins at a multiple of
constexpr float kLargestHalf = 65504;

// The centroids of a head's side; none where its format has no codebook.
std::span<const float> codebook_of(const SidePlan& side) {
  if (!side.sealed->codebook_shape()) return {};
  return side.context.constants.find(side.sealed->needed_constants().front());
}

}  // namespace

DeviceConstants::DeviceConstants(std::shared_ptr<PageDevice> device)
    : device_(std::move(device)), codebook_memory_(nullptr, {device_.get()}) {}

Result<std::shared_ptr<const DeviceConstants>> DeviceConstants::make(std::shared_ptr<PageDevice> device,
                                                                     const Plan& plan) {
  const Geometry& g = plan.geometry;
  std::shared_ptr<DeviceConstants> made(new DeviceConstants(std::move(device)));
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
              label(plan.recipe), layer, head, kLargestHalf, made->device_->name());
        }
        f16_row_from_float(book.data(), numbers.data() + books.offset + head * books.stride, book.size());
      }
      made->codebooks_.push_back(books);
    }
  }
  if (numbers.empty()) return std::shared_ptr<const DeviceConstants>(std::move(made));
  const std::size_t bytes = numbers.size() * sizeof numbers[0];
  made->device_->enter();
  made->codebook_memory_ = allocate_on(*made->device_, bytes);
  if (made->codebook_memory_ == nullptr) {
    return shortage("out of memory on {}: no room for the codebooks of {} ({} bytes)", made->device_->name(),
                    label(plan.recipe), bytes);
  }
  made->device_->upload(made->codebook_memory_.get(), numbers.data(), bytes);
  return std::shared_ptr<const DeviceConstants>(std::move(made));
}

void DeviceConstants::add_to(kvant_decode_layer& at_layer, int layer) const {
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
