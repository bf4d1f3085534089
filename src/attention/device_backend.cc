#include "attention/device_backend.h"

#include "cache/device_layout.h"

namespace kvant {
namespace {

class DeviceBackend final : public AttentionBackend {
 public:
  explicit DeviceBackend(std::shared_ptr<PageDevice> device) : device_(std::move(device)) {}

  // Rows in host memory are not for it.
  void run_layer(Step& step, int /*layer*/, const LayerRows& /*rows*/, Team& team) override {
    team.once([&] {
      step.fail(error("{} attends to what its own model computes, not to given queries: use --device cpu",
                      device_->name()));
    });
  }
  std::vector<SkipCount> skip_counts() const override { return {}; }
  PageOrder page_order() const override { return PageOrder::canonical; }
  Result<PlacedPlan> place(std::shared_ptr<const Plan> plan) const override {
    return place_on(device_, plan);
  }
  KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const override {
    LayerShape formats = layer_shape(plan, layer);
    formats.keys = {formats.keys[kv_head]};
    formats.values = {formats.values[kv_head]};
    kvant_decode_shape shape = formats.of(1, plan);
    const char* name = device_->library().decode_kernel(&shape);
    if (name == nullptr)
      return {"none", fmt::format("no kernel of {} reads {}", device_->name(), side_name(side))};
    return {name, ""};
  }
  RowObserver* observer() override { return nullptr; }

 private:
  std::shared_ptr<PageDevice> device_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_device_backend(std::shared_ptr<PageDevice> device) {
  return std::make_unique<DeviceBackend>(std::move(device));
}

}  // namespace kvant
