// Executor runs the rows of a step through a model's layers on one device, including the attention sites. The
// CPU and devices each have an executor, and the engine knows only the interface.
#pragma once

#include <cstdint>
#include <span>

#include "attention/attention.h"
#include "base/matrix_view.h"
#include "base/result.h"
#include "cache/cache.h"

namespace kvant {

// ForwardRows describes the rows of one batch.
struct ForwardRows {
  std::span<const std::int32_t> tokens;      // [n_rows], in [0, n_vocab)
  std::span<const std::int32_t> positions;   // [n_rows], each token's absolute index in its sequence
  std::span<const std::int32_t> logit_rows;  // the rows whose logits are wanted
  bool short_rope = false;                   // EngineInput::short_rope, for all rows
  bool wants_states = false;  // the outputs are the hidden states of logit_rows in place of logits; CPU only
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `rows`, the step's tokens in slice order, through the layers. Each attention site appends to the
  // step's cache and attends to it. `logits` is [logit_rows.size(), n_vocab], or has n_embd columns of hidden
  // states. Returns an error if memory is short; the caller must then abort the step. Errors of attention go
  // to step.fail().
  virtual Status run(Step& step, AttentionBackend& backend, const ForwardRows& rows,
                     MatrixView<float> logits) = 0;
};

}  // namespace kvant
