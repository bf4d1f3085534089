// LayerEval: what recipes do to the attention of each layer, on the unquantized model's own activations.
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
  std::shared_ptr<const Plan> plan;
};

struct LayerRow {
  std::string name;
  std::string label;  // of a suite's row; empty: none
  LayerEffects effects;
};

struct LayerResult {
  int context = 0;
  int chunks = 0;  // measured
  std::string reference;
  std::vector<LayerRow> rows;
};

// Runs `reference` over the text as evaluate_quality() does; all candidates get its Q, K and V. Measured are
// the queries of the second half of each chunk. options.step_tokens is not used. Tokens for `advance`: those
// of the reference.
Result<LayerResult> evaluate_layers(const EvalText& text, Engine& engine, AttentionBackend& backend,
                                    const LayerCandidate& reference,
                                    std::span<const LayerCandidate> candidates, const QualityOptions& options,
                                    const std::function<void(std::int64_t)>& advance);

// A plan and what attends over its cache.
struct AttentionSide {
  AttentionBackend& backend;
  std::shared_ptr<const Plan> plan;
};

// How far the attention outputs of `other` are from those of `own`, which go on to the model, on the same Q,
// K and V: over the second half of each chunk, token by token. Tokens for `advance`: those of `own`.
Result<OutputError> compare_outputs(const EvalText& text, Engine& engine, const AttentionSide& own,
                                    const AttentionSide& other, const QualityOptions& options,
                                    const std::function<void(std::int64_t)>& advance);

}  // namespace kvant
