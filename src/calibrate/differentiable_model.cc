#include "calibrate/differentiable_model.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/team.h"
#include "calibrate/f32_layer.h"
#include "calibrate/host_layer_gradient.h"
#include "calibrate/rope_table.h"
#include "calibrate/score_gradient.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {
namespace {

// The forward pass keeps at most this many bytes of activations for the backward pass. A model of 135M
// parameters needs 0.64 GB for 1024 tokens. The backward pass computes layers beyond the limit again, which
// takes a third more processor time.
constexpr std::int64_t kMostKeptBytes = std::int64_t{1} << 30;

class HostModel final : public DifferentiableModel {
 public:
  HostModel(const ModelParts& model, int n_threads, GemmPrecision precision)
      : model_(model),
        h_(model.hparams),
        n_threads_(n_threads),
        vocabulary_(make_host_vocabulary(model, precision)),
        workspace_{.precision = precision} {}

  const ModelParts& parts() const override { return model_; }
  Status begin(int n_rows) override {
    if (n_rows == n_rows_) return {};
    n_rows_ = n_rows;
    kept_ = std::vector<LayerActivations>(layers_kept(h_, n_rows));
    full_.emplace(model_, layer_that(/*slides=*/false), n_rows, n_threads_);
    sliding_.emplace(model_, layer_that(/*slides=*/true), n_rows, n_threads_);
    return {};
  }
  Status forward(int layer, MatrixView<float> x) override {
    turn_to(layer);
    run_team(n_threads_, [&](Team& team) { layer_->forward(x, team); });
    return {};
  }
  Result<const LayerGradient*> backward(int layer, MatrixView<const float> x,
                                        MatrixView<float> gradient) override {
    turn_to(layer);
    run_team(n_threads_, [&](Team& team) { layer_->backward(x, gradient, team); });
    return &*layer_;
  }
  VocabularyProducts& vocabulary() override { return *vocabulary_; }

 private:
  // Returns a layer with or without a window, or any layer if there is none of that kind.
  int layer_that(bool slides) const {
    for (int layer = 0; layer < h_.n_layers; ++layer)
      if ((h_.sliding_window[layer] > 0) == slides) return layer;
    return 0;
  }

  void turn_to(int layer) {
    layer_.reset();
    load_f32_layer(model_, layer, n_threads_, weights_);
    const bool keeps = layer < static_cast<int>(kept_.size());
    layer_.emplace(h_, layer, weights_, h_.sliding_window[layer] > 0 ? *sliding_ : *full_, n_rows_,
                   workspace_, keeps ? &kept_[layer] : nullptr);
  }

  const ModelParts model_;
  const Hparams& h_;
  int n_threads_;
  std::unique_ptr<VocabularyProducts> vocabulary_;
  int n_rows_ = 0;
  std::optional<RopeTable> full_, sliding_;
  F32Layer weights_;                    // the layer that ran last has these weights
  std::vector<LayerActivations> kept_;  // the activations of the first layers, up to kMostKeptBytes
  LayerWorkspace workspace_;
  std::optional<HostLayerGradient> layer_;
};

}  // namespace

bool has_known_layers(const ModelParts& model) {
  const Hparams& h = model.hparams;
  const Architecture& a = *h.architecture;
  if (a.unit.activation == Activation::clipped_silu || find_step<Attend>(a.layer.attention)->sinks)
    return false;
  if (h.gated_heads || h.n_recurrent() > 0 || a.unlike_layers) return false;
  if (h.logit_scale != 1 || h.temperature != 0) return false;
  for (int i = 0; i < h.n_layers; ++i)
    if (model.weights.layer(i).router != nullptr) return false;
  return true;
}

int layers_kept(const Hparams& hparams, int n_rows) {
  return static_cast<int>(
      std::min<std::int64_t>(kMostKeptBytes / activation_bytes(hparams, n_rows), hparams.n_layers));
}

std::int64_t gradient_bytes(const Hparams& h, int n_rows) {
  const std::int64_t n_q = h.n_heads * h.head_dim, n_kv = h.n_kv_heads * h.head_dim;
  const std::int64_t embd = h.n_embd, ff = h.n_ff, n = n_rows;
  const std::int64_t weights = embd * (2 * n_q + 2 * n_kv + 3 * ff),
                     packed = embd * std::max(ff, n_q + 2 * n_kv);
  // The sum includes the gradients of all heads.
  const std::int64_t work = n * (ff + 3 * embd + 2 * n_q + 2 * n_kv + 2 * n_q);
  const std::int64_t vocabulary = kVocabularyBlock * 3 * embd + 3 * n * embd + kMostLogitBytes / 4;
  const std::int64_t kept = (layers_kept(h, n_rows) + 1) * activation_bytes(h, n_rows) / 4;
  return 4 * (h.n_layers * n * embd + weights + packed + work + vocabulary + kept);
}

std::unique_ptr<DifferentiableModel> make_host_model(const ModelParts& model, int n_threads,
                                                     GemmPrecision precision) {
  return std::make_unique<HostModel>(model, n_threads, precision);
}

}  // namespace kvant
