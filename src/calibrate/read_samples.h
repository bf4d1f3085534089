// Runs a model on samples and captures its Q, K and V.
#pragma once

#include <atomic>
#include <functional>
#include <span>

#include "calibrate/capture.h"
#include "calibrate/samples.h"
#include "model/engine.h"

namespace kvant {

class ComputeDevice;

// A model that reads samples, and that writes them if asked to.
struct SampleReader {
  Engine* engine = nullptr;
  AttentionBackend* backend = nullptr;
  const ComputeDevice* device = nullptr;  // the device that the engine is on; null: the CPU
};

// Runs samples [first, ...) through the model on an unquantized cache. Each sample's first kSinkTokens are at
// the start of the context, the rest at its offset. advance(n) is called after n more samples. Returns the
// total number of samples done, which is smaller than their number once `stop` is set (null: never). Errors:
// from a step.
Result<int> read_samples(Engine& engine, AttentionBackend& backend, std::span<const Sample> samples,
                         int first, Capture& capture, const std::function<void(int)>& advance,
                         const std::atomic<bool>* stop);

}  // namespace kvant
