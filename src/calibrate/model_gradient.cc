#include "calibrate/model_gradient.h"

#include <cmath>

#include "calibrate/row_gradients.h"
#include "calibrate/score_gradient.h"
#include "model/weights.h"

namespace kvant {
namespace {

constexpr int kForwardSteps = 1, kBackwardSteps = 3;  // of a layer, by what they take

class Pass {
 public:
  Pass(const ModelParts& model, const GradientRequest& request)
      : model_(model),
        h_(model.hparams),
        request_(request),
        n_rows_(static_cast<int>(request.tokens.size())),
        full_(model, full_layer(), n_rows_, request.n_threads),
        sliding_(model, sliding_layer(), n_rows_, request.n_threads) {}

  Result<std::vector<double>> run(const std::function<void(int, const LayerGradient&)>& visit) {
    embed();
    for (int layer = 0; layer < h_.n_layers; ++layer) {
      if (stopped()) return error("interrupted");
      inputs_.push_back(x_);
      with_layer(layer, [&](LayerGradient& state, Team& team) { state.forward(rows(x_), team); });
      request_.advance(kForwardSteps);
    }
    std::vector<float> gradient(x_.size(), 0.0F);
    const int n_scored = n_rows_ - request_.first_scored;
    std::vector<std::int32_t> next(request_.tokens.begin() + request_.first_scored + 1,
                                   request_.tokens.end());
    next.push_back(request_.tokens.front());
    ScoreGradient score = score_gradient(model_, rows(x_).slice(request_.first_scored, n_scored), next,
                                         request_.seed, request_.n_threads);
    std::copy(score.gradient.begin(), score.gradient.end(), rows(gradient).row(request_.first_scored));
    for (int layer = h_.n_layers - 1; layer >= 0; --layer) {
      if (stopped()) return error("interrupted");
      with_layer(
          layer,
          [&](LayerGradient& state, Team& team) {
            state.backward(rows(inputs_[layer]), rows(gradient), team);
          },
          [&](const LayerGradient& state) { visit(layer, state); });
      inputs_[layer] = {};
      request_.advance(kBackwardSteps);
    }
    return std::move(score.log_probabilities);
  }

 private:
  bool stopped() const { return request_.stop != nullptr && *request_.stop; }
  MatrixView<float> rows(std::vector<float>& x) const { return {x.data(), n_rows_, h_.n_embd}; }

  // A layer of each kind; any, where there is none.
  int full_layer() const { return layer_that(false); }
  int sliding_layer() const { return layer_that(true); }
  int layer_that(bool slides) const {
    for (int layer = 0; layer < h_.n_layers; ++layer)
      if ((h_.sliding_window[layer] > 0) == slides) return layer;
    return 0;
  }

  void embed() {
    x_.resize(static_cast<std::size_t>(n_rows_) * h_.n_embd);
    for (int r = 0; r < n_rows_; ++r)
      f32_rows(model_, model_.weights.token_embedding(), request_.tokens[r], 1, rows(x_).row(r));
    for (float& value : x_) value *= h_.embedding_scale;
  }

  template <class Run, class Visit>
  void with_layer(int layer, const Run& run, const Visit& visit) {
    const F32Layer weights = f32_layer(model_, layer, request_.n_threads);
    LayerGradient state(h_, layer, weights, h_.sliding_window[layer] > 0 ? sliding_ : full_, n_rows_);
    run_team(request_.n_threads, [&](Team& team) { run(state, team); });
    visit(state);
  }
  template <class Run>
  void with_layer(int layer, const Run& run) {
    with_layer(layer, run, [](const LayerGradient&) {});
  }

  const ModelParts& model_;
  const Hparams& h_;
  const GradientRequest& request_;
  int n_rows_;
  RopeTable full_, sliding_;
  std::vector<float> x_;                    // [n_rows, n_embd]: the residual stream
  std::vector<std::vector<float>> inputs_;  // of each layer
};

}  // namespace

int gradient_steps(const Hparams& hparams) {
  return hparams.n_layers * (kForwardSteps + kBackwardSteps);
}

bool has_known_layers(const ModelParts& model) {
  const Hparams& h = model.hparams;
  const Architecture& a = *h.architecture;
  const bool heads_normed = a.qk_norm == QkNorm::none || a.qk_norm == QkNorm::heads;
  const bool gated = a.activation == Activation::silu || a.activation == Activation::gelu;
  if (a.layer_norm || a.ungated || a.sinks || !heads_normed || !gated || a.rotated != RotatedLayers::all)
    return false;
  if (a.gated_attention || h.n_recurrent() > 0 || h.n_sharing > 0 || h.n_layer_embd > 0) return false;
  if (a.heads_by_layer || a.unscaled_scores || a.normed_values || a.full_rope_factors || a.layer_scales)
    return false;
  if (h.residual_scale != 1 || h.logit_scale != 1 || h.temperature != 0) return false;
  for (int i = 0; i < model.hparams.n_layers; ++i) {
    const LayerWeights& w = model.weights.layer(i);
    const bool has_qkv = w.qkv != nullptr || (w.q != nullptr && w.k != nullptr && w.v != nullptr);
    for (const ggml_tensor* t : {w.attn_norm, w.attn_out, w.ffn_norm, w.ffn.up, w.ffn.down})
      if (t == nullptr) return false;
    if (!has_qkv) return false;
  }
  return true;
}

Result<std::vector<double>> model_gradient(
    const ModelParts& model, const GradientRequest& request,
    const std::function<void(int layer, const LayerGradient&)>& visit) {
  return Pass(model, request).run(visit);
}

}  // namespace kvant
