#include "attention/device_backend.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/device_attention.h"
#include "attention/device_buffer.h"
#include "attention/head_transforms.h"
#include "attention/step_memory.h"
#include "cache/device_layout.h"

namespace kvant {
namespace {

class DeviceBackend final : public AttentionBackend {
 public:
  explicit DeviceBackend(std::shared_ptr<PageDevice> device)
      : device_(device), attention_(device), rows_(std::move(device)) {}

  // Copies rows from host memory to the device and outputs back, so one thread waits for each layer.
  // Measurements and tests need this. A model on the device uses DeviceAttention directly
  // (device_attention.h).
  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  std::vector<SkipCount> skip_counts() const override { return {}; }
  PageOrder page_order() const override { return PageOrder::canonical; }
  Result<PlacedPlan> place(std::shared_ptr<const Plan> plan) const override {
    return place_on(device_, plan);
  }
  KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const override;
  RowObserver* observer() override { return nullptr; }

 private:
  Status begin(Step& step);
  void attend(Step& step, int layer, const LayerRows& rows);
  // Uploads transformed rows to `to` on the device and returns their address. `to` then points to the free
  // memory after the rows.
  template <class Apply>
  float* upload(const Plan& plan, int layer, Side side, const MatrixView<const float>& from,
                const Apply& apply, float*& to);

  std::shared_ptr<PageDevice> device_;
  DeviceAttention attention_;
  const Step* step_ = nullptr;      // The step that attention_ has begun.
  DeviceBuffer rows_;               // q, k, v and the output of a layer
  std::vector<float> transformed_;  // rows of q, k or v
};

void DeviceBackend::run_layer(Step& step, int layer, const LayerRows& rows, Team& team) {
  team.once([&] {
    run_within_memory(step, [&] { attend(step, layer, rows); });
    for (int r = 0; step.failed() && r < rows.out.rows; ++r)
      std::fill_n(rows.out.row(r), rows.out.cols, 0.0F);
  });
}

// Steps of several caches may alternate, so a change of step begins the step again.
Status DeviceBackend::begin(Step& step) {
  const bool is_new = step.is_new_to(this);
  if (!is_new && step_ == &step) return {};
  const Geometry& g = step.plan().geometry;
  const std::size_t values = std::size_t{2} * step.n_rows() * (g.n_heads + g.n_kv_heads) * g.head_dim;
  KVANT_RETURN_IF_ERROR(rows_.reserve(values * sizeof(float), "for the rows of its layers"));
  step_ = &step;
  return attention_.begin(step);
}

template <class Apply>
float* DeviceBackend::upload(const Plan& plan, int layer, Side side, const MatrixView<const float>& from,
                             const Apply& apply, float*& to) {
  transformed_.resize(static_cast<std::size_t>(from.rows) * from.cols);
  for (int r = 0; r < from.rows; ++r)
    std::copy_n(from.row(r), from.cols, transformed_.begin() + std::ptrdiff_t{r} * from.cols);
  for_each_head_transform(plan, layer, side, {transformed_.data(), from.rows, from.cols}, apply);
  device_->upload(to, transformed_.data(), transformed_.size() * sizeof(float));
  return std::exchange(to, to + transformed_.size());
}

void DeviceBackend::attend(Step& step, int layer, const LayerRows& rows) {
  device_->enter();
  if (const Status begun = begin(step); !begun.ok()) return step.fail(begun.error());
  const Plan& plan = step.plan();
  auto* at = reinterpret_cast<float*>(rows_.memory());
  const auto forward = [](const Transform& t, MatrixView<float> x) { t.forward(x); };
  // An offset of the scores is equal for all keys, so the softmax ignores it.
  const auto query = [](const Transform& t, MatrixView<float> x) { t.query(x, nullptr); };
  float* q = upload(plan, layer, Side::key, rows.q, query, at);
  const float* k = rows.has_kv() ? upload(plan, layer, Side::key, rows.k, forward, at) : nullptr;
  const float* v = rows.has_kv() ? upload(plan, layer, Side::value, rows.v, forward, at) : nullptr;
  attention_.run_layer(step, layer, {q, k, v, /*out=*/at, {}, {}});
  if (step.failed()) return;
  transformed_.resize(static_cast<std::size_t>(rows.out.rows) * rows.out.cols);
  device_->download(transformed_.data(), at, transformed_.size() * sizeof(float));
  if (const Status status = device_->finish(); !status.ok()) return step.fail(status.error());
  for_each_head_transform(plan, layer, Side::value, {transformed_.data(), rows.out.rows, rows.out.cols},
                          [](const Transform& t, MatrixView<float> x) { t.inverse(x); });
  for (int r = 0; r < rows.out.rows; ++r)
    std::copy_n(transformed_.begin() + std::ptrdiff_t{r} * rows.out.cols, rows.out.cols, rows.out.row(r));
}

KernelChoice DeviceBackend::kernel(const Plan& plan, int layer, int kv_head, Side side) const {
  LayerShape formats = layer_shape(plan, layer);
  formats.keys = {formats.keys[kv_head]};
  formats.values = {formats.values[kv_head]};
  kvant_decode_shape shape = formats.of(1, plan);
  const char* name = device_->library().decode_kernel(&shape);
  if (name == nullptr)
    return {"none", fmt::format("no kernel of {} reads {}", device_->name(), side_name(side))};
  if (side == Side::value && plan.recipe.skip > 0 && !std::string_view(name).ends_with("skipping values"))
    return {name, fmt::format("the kernel reads all values, though skip={} lets it leave some unread",
                              plan.recipe.skip)};
  return {name, ""};
}

}  // namespace

std::unique_ptr<AttentionBackend> make_device_backend(std::shared_ptr<PageDevice> device) {
  return std::make_unique<DeviceBackend>(std::move(device));
}

}  // namespace kvant
