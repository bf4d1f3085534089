// Measures how the predictions of a cache drift while the model reads its own completion. The reference
// completes prompts greedily, and every cache reads this completion token by token, as decode does. Errors
// that add up show as a divergence that grows with the position.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/logit_metrics.h"
#include "eval/logit_source.h"

namespace kvant {

struct DriftOptions {
  int generated_tokens = 2048;  // tokens that each prompt is continued by
  int block_tokens = 256;       // positions of one block; the last block may be shorter
  int n_texts = 1;              // prompts that are completed side by side; LogitSource::begin_texts()
  int n_threads = 1;            // threads for the metrics
  // Returns true for a token that ends a generation. The reference chooses the likeliest other token instead,
  // because all completions must have the same length.
  std::function<bool(std::int32_t)> ends_generation;
};

struct DriftBlock {
  int first = 0, count = 0;  // positions in the completion
  double kld = 0;            // mean divergence, nats
  // Holds the bootstrap 95 % interval of `kld` over prompts.
  Interval interval;
  double top1 = 0;  // share of positions with the reference's likeliest token
};

struct DriftRow {
  std::string name;
  // Holds the label of a suite's row. The label is empty without a suite.
  std::string label;
  PlanReport plan;
  MetricsSummary all;  // figures of all positions
  std::vector<DriftBlock> blocks;
};

struct DriftResult {
  int generated_tokens = 0;
  int prompts = 0;
  // Holds the fingerprint of the prompts.
  std::string text;
  // For each prompt, this list has the position at which the reference would have ended first, or
  // generated_tokens if the reference would not have ended.
  std::vector<int> ends;
  // The first row is the reference.
  std::vector<DriftRow> rows;
};

// Runs all sources in lockstep. The first source is the reference. advance(n) reports that one source has
// read one token of each of n completions.
Result<DriftResult> evaluate_drift(std::span<const std::vector<std::int32_t>> prompts, int n_vocab,
                                   std::span<const std::unique_ptr<LogitSource>> sources,
                                   const DriftOptions& options, const std::function<void(int)>& advance);

}  // namespace kvant
