// Tunes a recipe to a model: chooses formats for every layer, KV head and side within a size, such that the
// model's predictions change least.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/result.h"
#include "calibrate/allocation_search.h"
#include "eval/cache_size.h"
#include "eval/logit_metrics.h"
#include "eval/quality_eval.h"
#include "model/engine.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

struct TuneRequest {
  Recipe base;                                 // must have a ladder
  std::shared_ptr<const Constants> constants;  // everything that it needs, including sensitivities
  std::int64_t max_bytes = 0;                  // for a sequence of `context` tokens
  int context = 0;
  std::vector<std::vector<std::int32_t>> tuning;  // contexts on which allocations are compared
  EvalText held_out;                              // text for the final figures, in chunks of held_out_context
  int held_out_context = 0;
  int trials = 0;
  int n_threads = 2;
  std::string state_path;                   // trials are saved there until the end, and resumed
  const std::atomic<bool>* stop = nullptr;  // see CalibrationRequest
};

// The result of one cache on the held-out text.
struct TuneRow {
  std::string name;
  MetricsSummary metrics;
};

struct TuneResult {
  Recipe recipe;
  SensitivityBend bend;
  double predicted = 0;           // sum of the measured sensitivities of its formats, nats
  std::vector<BendTrial> trials;  // on the tuning contexts; the first is the plain allocation
  std::vector<TuneRow> held_out;  // the recipe first, then the plain allocation, if it is another, and the
                                  // best format for all heads alike that fits, if there is one
  int chunks = 0;                 // chunks of the held-out text
  double bits_all = 0, bits_sealed = 0;  // mean_bits(), at `context`
  ConstantSize constants;                // likewise
  std::int64_t bytes = 0;                // likewise
};

// Deterministic, with or without interruptions. If the plain allocation does better on the held-out text, it
// is the result. On a device, sizes are those of the CPU's pages and tails. Shows progress on stderr. Errors:
// see allocate_bytes; a step's error; "interrupted".
Result<TuneResult> tune(Engine& engine, AttentionBackend& backend, const TuneRequest& request);

}  // namespace kvant
