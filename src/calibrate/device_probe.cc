#include "calibrate/device_probe.h"

#include <algorithm>

#include "base/check.h"
#include "base/page_size.h"
#include "base/team.h"
#include "calibrate/f32_layer.h"
#include "calibrate/f32_logits.h"
#include "calibrate/scored_predictions.h"
#include "calibrate/through_cache.h"
#include "model/hparams.h"
#include "recipe/bit_allocation.h"
#include "transform/transform.h"

namespace kvant {

DeviceProbe::DeviceProbe(DeviceModel& model, const Geometry& geometry, std::vector<std::int32_t> tokens,
                         int n_threads)
    : model_(model),
      geometry_(geometry),
      tokens_(std::move(tokens)),
      n_threads_(n_threads),
      n_scored_(n_scored_predictions(tokens_.size(), model.parts().hparams.n_vocab)) {}

Result<std::unique_ptr<DeviceProbe>> DeviceProbe::make(DeviceModel& model, const Geometry& geometry,
                                                       std::vector<std::int32_t> tokens, int n_layers,
                                                       int n_threads) {
  std::unique_ptr<DeviceProbe> probe(new DeviceProbe(model, geometry, std::move(tokens), n_threads));
  KVANT_RETURN_IF_ERROR(probe->run(n_layers));
  return probe;
}

MatrixView<float> DeviceProbe::rows(std::vector<float>& x) const {
  return {x.data(), n_rows(), model_.parts().hparams.n_embd};
}

Status DeviceProbe::run(int n_layers) {
  KVANT_RETURN_IF_ERROR(model_.begin(n_rows()));
  std::vector<float> x = embedded(model_.parts(), tokens_);
  for (int layer = 0; layer < n_layers; ++layer) {
    Layer& kept = layers_.emplace_back(Layer{.input = x, .stored = {}});
    KVANT_RETURN_IF_ERROR(model_.forward_storing(layer, rows(x), kept.stored));
  }
  return finish(n_layers, x, expected_);
}

// From what `layer` gets to the logits.
Status DeviceProbe::finish(int layer, std::vector<float>& x, std::vector<float>& logits) {
  const Hparams& h = model_.parts().hparams;
  for (; layer < h.n_layers; ++layer) KVANT_RETURN_IF_ERROR(model_.forward(layer, rows(x)));
  logits.resize(static_cast<std::size_t>(n_scored_) * h.n_vocab);
  return f32_logits(model_.parts(), model_.vocabulary(), rows(x).slice(n_rows() - n_scored_, n_scored_),
                    n_threads_, {logits.data(), n_scored_, h.n_vocab});
}

// What sealed pages hold of a layer's side, [n_kv_heads, n_rows, head_dim]; behind them, what it stored.
std::vector<float> DeviceProbe::sealed(const Recipe& recipe, const Constants& known, int layer,
                                       Side side) const {
  const int d = geometry_.dim(layer);
  const std::ptrdiff_t size = std::ptrdiff_t{1} * n_rows() * d;
  const std::ptrdiff_t whole = std::ptrdiff_t{1} * (n_rows() / kPageTokens) * kPageTokens * d;
  const Format& format = probe_format(recipe, geometry_.head_dim);
  std::vector<float> all = layers_[layer].stored.side(side);
  run_team(n_threads_, [&](Team& team) {
    team.for_each(geometry_.kv_heads(layer), [&](int head) {
      const PageContext context{d, HeadConstants{&known, layer, head, side}};
      const auto transform =
          Transform::make((side == Side::key ? recipe.k : recipe.v).transforms, d, context.constants);
      KVANT_CHECK(transform.ok(), "transforms that were just learned");
      const auto first = all.begin() + head * size;
      const std::vector<float> held = through_cache(format, *transform, context, recipe.sink,
                                                    /*first_position=*/0, {first, first + whole});
      std::copy(held.begin(), held.end(), first);
    });
  });
  return all;
}

Result<double> DeviceProbe::divergence(const Recipe& recipe, const Constants& known, int layer, Side side) {
  KVANT_CHECK(layer < std::ssize(layers_), "a layer of which nothing was kept");
  std::vector<float> x = layers_[layer].input, got;
  KVANT_RETURN_IF_ERROR(model_.begin(n_rows()));
  KVANT_RETURN_IF_ERROR(model_.forward_reading(layer, side, sealed(recipe, known, layer, side), rows(x)));
  KVANT_RETURN_IF_ERROR(finish(layer + 1, x, got));
  return mean_divergence(expected_, got, model_.parts().hparams.n_vocab, n_threads_);
}

}  // namespace kvant
