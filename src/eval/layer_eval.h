// Measures how recipes change the attention of each layer. The layers read the activations of the
// reference, so the error of one layer does not reach the next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/output_error.h"
#include "eval/quality_eval.h"
#include "model/engine.h"

namespace kvant {

struct LayerCandidate {
  std::string name;
  PlacedPlan plan;
};

struct LayerRow {
  std::string name;
  // Holds the label of a suite's row. The label is empty without a suite.
  std::string label;
  LayerEffects effects;
};

struct LayerResult {
  int context = 0;
  int chunks = 0;  // number of chunks that were measured
  std::string reference;
  std::vector<LayerRow> rows;
};

// Runs `reference` over the text as evaluate_quality() does, and gives its Q, K and V to all candidates. Only
// the queries in the second half of each chunk are measured, and options.step_tokens is ignored. advance(n)
// is called after n more tokens of the reference.
Result<LayerResult> evaluate_layers(const EvalText& text, Engine& engine, AttentionBackend& backend,
                                    const LayerCandidate& reference,
                                    std::span<const LayerCandidate> candidates, const QualityOptions& options,
                                    const std::function<void(std::int64_t)>& advance);

// Pairs a plan with the backend that attends over its cache.
struct AttentionSide {
  AttentionBackend& backend;
  PlacedPlan plan;
};

// Compares the attention outputs of `other` with the outputs of `own` on equal Q, K and V. The model
// continues with the outputs of `own`. The queries are the tokens of the second half of each chunk, in single
// steps. advance(n) is called after n more tokens of `own`.
Result<OutputError> compare_outputs(const EvalText& text, Engine& engine, const AttentionSide& own,
                                    const AttentionSide& other, const QualityOptions& options,
                                    const std::function<void(std::int64_t)>& advance);

}  // namespace kvant
