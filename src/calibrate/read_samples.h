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
  const ComputeDevice* device = nullptr;  // the engine's device; null means the CPU
};

// Runs the samples from `first` on through the model on an unquantized cache. The first kSinkTokens tokens of
// each sample are at the start of the context, and the other tokens are at the sample's offset. advance(n) is
// called after n more samples. Returns how many samples are done in total. Once `stop` is true, the function
// returns early with a smaller number (null means never). Returns the errors of a step.
Result<int> read_samples(Engine& engine, AttentionBackend& backend, std::span<const Sample> samples,
                         int first, Capture& capture, const std::function<void(int)>& advance,
                         const std::atomic<bool>* stop);

}  // namespace kvant
