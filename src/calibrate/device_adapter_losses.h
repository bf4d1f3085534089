// Computes the loss of KVLinC's adapters on a device. adapter_loss.h states the formula.
#pragma once

#include <mutex>

#include "calibrate/adapter_losses.h"
#include "calibrate/adapter_training.h"
#include "model/compute_device.h"

namespace kvant {

// Makes losses whose contexts lie in the device's memory. Returns an error if memory is short, or if the
// device cannot compute something. `device` must outlive the result.
Result<std::unique_ptr<AdapterLosses>> make_device_adapter_losses(const ComputeDevice& device,
                                                                  std::span<const AdapterContext> contexts,
                                                                  int features);

// Trains adapters on a device, one head at a time. Several threads may call train(). If the device cannot
// train them, the object warns, and the calling threads train on the CPU.
class AdapterDevice {
 public:
  explicit AdapterDevice(const ComputeDevice& device) : device_(device) {}

  TrainedAdapters train(std::span<const AdapterContext> training, std::span<const AdapterContext> judged,
                        int n_query_heads, const AdapterOptions& options);

 private:
  const ComputeDevice& device_;
  std::mutex mutex_;
  bool has_failed_ = false;
};

}  // namespace kvant
