#include "calibrate/model_gradient.h"

#include <algorithm>

#include "calibrate/f32_layer.h"
#include "calibrate/score_gradient.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {
namespace {

// These numbers weigh the progress by the time that passes take. The vocabulary is multiplied two and a half
// times.
constexpr int kForwardSteps = 3, kBackwardSteps = 4;  // per layer

int vocabulary_steps(const Hparams& h) {
  const double layer =
      1.0 * h.n_embd * (2.0 * h.n_heads * h.head_dim + 2.0 * h.n_kv_heads * h.head_dim + 3.0 * h.n_ff);
  return static_cast<int>(2.5 * kForwardSteps / 2 * h.n_vocab * h.n_embd / layer);
}

class Pass {
 public:
  Pass(DifferentiableModel& model, const GradientRequest& request)
      : model_(model),
        h_(model.parts().hparams),
        request_(request),
        n_rows_(static_cast<int>(request.tokens.size())) {}

  Result<std::vector<double>> run(const std::function<void(int, const LayerGradient&)>& visit) {
    KVANT_RETURN_IF_ERROR(model_.begin(n_rows_));
    x_ = embedded(model_.parts(), request_.tokens);
    for (int layer = 0; layer < h_.n_layers; ++layer) {
      if (stopped()) return error("interrupted");
      inputs_.push_back(x_);
      KVANT_RETURN_IF_ERROR(model_.forward(layer, rows(x_)));
      request_.advance(kForwardSteps);
    }
    std::vector<float> gradient(x_.size(), 0.0F);
    const int n_scored = n_rows_ - request_.first_scored;
    std::vector<std::int32_t> next(request_.tokens.begin() + request_.first_scored + 1,
                                   request_.tokens.end());
    next.push_back(request_.tokens.front());
    auto score =
        score_gradient(model_.parts(), model_.vocabulary(), rows(x_).slice(request_.first_scored, n_scored),
                       next, request_.seed, request_.n_threads);
    if (!score.ok()) return score.error();
    request_.advance(vocabulary_steps(h_));
    if (!visit) return std::move(score->log_probabilities);
    std::copy(score->gradient.begin(), score->gradient.end(), rows(gradient).row(request_.first_scored));
    for (int layer = h_.n_layers - 1; layer >= 0; --layer) {
      if (stopped()) return error("interrupted");
      const auto state = model_.backward(layer, rows(inputs_[layer]), rows(gradient));
      if (!state.ok()) return state.error();
      visit(layer, **state);
      inputs_[layer] = {};
      request_.advance(kBackwardSteps);
    }
    return std::move(score->log_probabilities);
  }

 private:
  bool stopped() const { return request_.stop != nullptr && *request_.stop; }
  MatrixView<float> rows(std::vector<float>& x) const { return {x.data(), n_rows_, h_.n_embd}; }

  DifferentiableModel& model_;
  const Hparams& h_;
  const GradientRequest& request_;
  int n_rows_;
  std::vector<float> x_;                    // [n_rows, n_embd], the residual stream
  std::vector<std::vector<float>> inputs_;  // inputs_[i] is the input of layer i
};

}  // namespace

int gradient_steps(const Hparams& hparams) {
  return hparams.n_layers * (kForwardSteps + kBackwardSteps) + vocabulary_steps(hparams);
}

Result<std::vector<double>> model_gradient(
    DifferentiableModel& model, const GradientRequest& request,
    const std::function<void(int layer, const LayerGradient&)>& visit) {
  return Pass(model, request).run(visit);
}

}  // namespace kvant
