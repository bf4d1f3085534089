// Runs a model on samples and captures its Q, K and V. The model runs with an unquantized cache, because
// constants must not depend on other constants' errors.
#pragma once

#include <atomic>
#include <functional>
#include <span>

#include "calibrate/capture.h"
#include "calibrate/samples.h"
#include "model/engine.h"

namespace kvant {

class ComputeDevice;

// SampleReader is a model that reads samples, and that can also write them.
struct SampleReader {
  Engine* engine = nullptr;
  AttentionBackend* backend = nullptr;
  const ComputeDevice* device = nullptr;  // the engine's device; null: the CPU
};

// Runs samples [first, ...) through the model on an unquantized cache. The first kSinkTokens of each are at
// the start of the context, and the others at the sample's offset. advance(n) is called after n more samples.
// Returns how many samples are done in total. The number is smaller than that of all samples once `stop` is
// true (null: never). Returns the errors of a step.
Result<int> read_samples(Engine& engine, AttentionBackend& backend, std::span<const Sample> samples,
                         int first, Capture& capture, const std::function<void(int)>& advance,
                         const std::atomic<bool>* stop);

}  // namespace kvant
