// The derivative of a model's predictions by its K and V, from one pass over a context and one back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "model/hparams.h"

namespace kvant {

struct GradientRequest {
  std::span<const std::int32_t> tokens;
  int first_scored = 0;  // predictions of tokens [first_scored, n) count
  std::uint64_t seed = 0;
  int n_threads = 1;
  std::function<void(int)> advance;         // after n more of gradient_steps()
  const std::atomic<bool>* stop = nullptr;  // once true: the error "interrupted"; null: never
};

// Of one request, for progress.
int gradient_steps(const Hparams& hparams);

// Calls visit(layer, state) from the last layer to the first, with the scores' derivative (score_gradient.h).
// An empty visit: nothing is differentiated.
// Returns the log probabilities of the scored positions' next tokens (of the last: of the first token).
// Errors: "interrupted"; the model's.
Result<std::vector<double>> model_gradient(DifferentiableModel& model, const GradientRequest& request,
                                           const std::function<void(int layer, const LayerGradient&)>& visit);

}  // namespace kvant
