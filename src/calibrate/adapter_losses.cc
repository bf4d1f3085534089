#include "calibrate/adapter_losses.h"

namespace kvant {
namespace {

void add_to(std::vector<float>& sum, const std::vector<float>& values) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

void divide(std::vector<float>& values, std::size_t divisor) {
  for (float& x : values) x /= static_cast<float>(divisor);
}

class HostAdapterLosses final : public AdapterLosses {
 public:
  HostAdapterLosses(std::span<const AdapterContext> contexts, int features)
      : contexts_(contexts), features_(features) {}

  Result<double> mean(std::span<const std::size_t> contexts, const AdapterWeights& weights,
                      AdapterWeights* gradient) override {
    double sum = 0;
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      AdapterWeights* to = gradient == nullptr || i == 0 ? gradient : &of_context_;
      sum += adapter_loss(contexts_[contexts[i]], weights, features_, to);
      if (to != &of_context_) continue;
      add_to(gradient->key, of_context_.key);
      add_to(gradient->query, of_context_.query);
    }
    if (gradient != nullptr && contexts.size() > 1) {
      divide(gradient->key, contexts.size());
      divide(gradient->query, contexts.size());
    }
    return sum / static_cast<double>(contexts.size());
  }

 private:
  std::span<const AdapterContext> contexts_;
  int features_;
  AdapterWeights of_context_;
};

}  // namespace

Result<std::unique_ptr<AdapterLosses>> make_host_adapter_losses(std::span<const AdapterContext> contexts,
                                                                int features) {
  return std::unique_ptr<AdapterLosses>(std::make_unique<HostAdapterLosses>(contexts, features));
}

}  // namespace kvant
