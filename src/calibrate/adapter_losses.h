// Computes the loss of KVLinC's adapters on chosen contexts of one head, on the CPU or on a device.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "calibrate/adapter_loss.h"

namespace kvant {

class AdapterLosses {
 public:
  virtual ~AdapterLosses() = default;

  // Returns the mean loss of contexts, which are named by their numbers. If `gradient` is not null, it
  // receives the mean derivatives.
  virtual Result<double> mean(std::span<const std::size_t> contexts, const AdapterWeights& weights,
                              AdapterWeights* gradient) = 0;
};

// Makes losses of contexts, which must outlive the result. `features` is D.
using MakeAdapterLosses = std::function<Result<std::unique_ptr<AdapterLosses>>(
    std::span<const AdapterContext> contexts, int features)>;

// Makes losses that the CPU computes.
Result<std::unique_ptr<AdapterLosses>> make_host_adapter_losses(std::span<const AdapterContext> contexts,
                                                                int features);

}  // namespace kvant
