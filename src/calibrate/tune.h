// Tunes a recipe to a model. tune() chooses the formats of every layer, KV head and side that change the
// model's predictions least within a given size.
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
  Recipe base;                                 // the recipe must have a ladder
  std::shared_ptr<const Constants> constants;  // everything that the recipe needs, including sensitivities
  std::int64_t max_bytes = 0;                  // bytes; the limit applies to a sequence of `context` tokens
  int context = 0;
  std::vector<std::vector<std::int32_t>> tuning;  // contexts on which allocations are compared
  EvalText held_out;                              // this text gives the final figures, in chunks of
                                                  // held_out_context tokens
  int held_out_context = 0;
  int trials = 0;
  int n_threads = 2;
  std::string state_path;                   // trials are saved in this file until the end; an interrupted
                                            // tuning resumes from it
  const std::atomic<bool>* stop = nullptr;  // CalibrationRequest::stop
};

// TuneRow is the result of one cache on the held-out text.
struct TuneRow {
  std::string name;
  MetricsSummary metrics;
};

struct TuneResult {
  Recipe recipe;
  SensitivityBend bend;
  double predicted = 0;           // nats; the sum of the sensitivities of the chosen formats
  std::vector<BendTrial> trials;  // the trials on the tuning contexts; the first is the plain allocation
  // The first row is the recipe. The second row is the plain allocation, if it differs from the recipe. The
  // last row has the same format in all heads, which is the largest format that fits. Without such a format,
  // the last row is missing.
  std::vector<TuneRow> held_out;
  int chunks = 0;                        // the held-out text has this many chunks
  double bits_all = 0, bits_sealed = 0;  // the result of mean_bits() at `context`
  ConstantSize constants;                // sizes at a context of `context` tokens
  std::int64_t bytes = 0;                // size at a context of `context` tokens
};

// Runs the tuning. The result is deterministic, with or without interruptions. If the plain allocation does
// better on the held-out text, the result is the plain allocation. Even on a device, sizes count the CPU's
// pages and tails. Progress goes to stderr. Returns the errors of allocate_bytes() and of a step, and
// "interrupted".
Result<TuneResult> tune(Engine& engine, AttentionBackend& backend, const TuneRequest& request);

}  // namespace kvant
