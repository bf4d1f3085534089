// Computes the derivative of a model's predictions by its K and V, with one forward and one backward pass
// over a context. Sensitivities and metrics of all places come from the same pass, which is much cheaper than
// one run of the model for each.
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
  int first_scored = 0;  // the predictions of tokens [first_scored, n) count
  std::uint64_t seed = 0;
  int n_threads = 1;
  std::function<void(int)> advance;         // called after n more of gradient_steps() are done
  const std::atomic<bool>* stop = nullptr;  // once true, the error "interrupted" is returned; may be null
};

// Returns the number of steps of one request, for progress.
int gradient_steps(const Hparams& hparams);

// Calls visit(layer, gradient) from the last layer to the first, with the derivative of the predictions'
// scores (score_gradient.h). If `visit` is empty, nothing is differentiated. Returns the log probability of
// the next token at each scored position. At the last position, the context's first token counts as the next
// token. Returns the error "interrupted", and the model's errors.
Result<std::vector<double>> model_gradient(DifferentiableModel& model, const GradientRequest& request,
                                           const std::function<void(int layer, const LayerGradient&)>& visit);

}  // namespace kvant
