// LayerEval: how recipes change the attention of each layer, measured on the unquantized model's own
// activations.
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
  std::string label;  // label of a suite's row; empty: none
  LayerEffects effects;
};

struct LayerResult {
  int context = 0;
  int chunks = 0;  // measured
  std::string reference;
  std::vector<LayerRow> rows;
};

// Runs `reference` over the text as evaluate_quality() does; all candidates get its Q, K and V. It measures
// the queries of the second half of each chunk and ignores options.step_tokens. `advance` counts the
// reference's tokens.
Result<LayerResult> evaluate_layers(const EvalText& text, Engine& engine, AttentionBackend& backend,
                                    const LayerCandidate& reference,
                                    std::span<const LayerCandidate> candidates, const QualityOptions& options,
                                    const std::function<void(std::int64_t)>& advance);

// Pairs a plan with the backend that attends over its cache.
struct AttentionSide {
  AttentionBackend& backend;
  PlacedPlan plan;
};

// Compares the attention outputs of `other` with those of `own`, which the model continues with, on the same
// Q, K and V. It covers the second half of each chunk, token by token. `advance` counts the tokens of `own`.
Result<OutputError> compare_outputs(const EvalText& text, Engine& engine, const AttentionSide& own,
                                    const AttentionSide& other, const QualityOptions& options,
                                    const std::function<void(std::int64_t)>& advance);

}  // namespace kvant
