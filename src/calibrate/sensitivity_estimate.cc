#include "calibrate/sensitivity_estimate.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "calibrate/through_cache.h"
#include "transform/transform.h"

namespace kvant {
namespace {

// Returns one side of a KV head's sealed pages as the cache would hold it in a format of the ladder.
PackedMatrix held(MatrixView<const float> stored, const Recipe& recipe, const Format& format,
                  const HeadConstants& constants, int n_pages) {
  const PageContext context{stored.cols, constants};
  const auto transform =
      Transform::make((constants.side == Side::key ? recipe.k : recipe.v).transforms, stored.cols, constants);
  KVANT_CHECK(transform.ok(), "transforms that were just learned");
  std::vector<float> exact;
  for (int t = 0; t < n_pages * kPageTokens; ++t)
    exact.insert(exact.end(), stored.row(t), stored.row(t) + stored.cols);
  const std::vector<float> values =
      through_cache(format, *transform, context, recipe.sink, /*first_position=*/0, std::move(exact));
  return packed_pages(constants.side, {values.data(), n_pages * kPageTokens, stored.cols}, stored);
}

// LayerEffects computes the effects of errors in one layer of a context.
class LayerEffects {
 public:
  LayerEffects(const LayerGradient& state, const Geometry& geometry, int layer, const Recipe& recipe)
      : state_(state),
        recipe_(recipe),
        layer_(layer),
        n_kv_heads_(geometry.kv_heads(layer)),
        n_heads_(geometry.n_heads),
        n_formats_(static_cast<int>(recipe.ladder.size())),
        n_rows_(state.stored(0, Side::key).rows),
        n_pages_((n_rows_ - 1) / kPageTokens),  // the number of pages that some query reads sealed
        held_(static_cast<std::size_t>(n_kv_heads_) * 2 * n_formats_),
        effects_(static_cast<std::size_t>(n_heads_) * 2 * n_formats_ * n_rows_, 0.0) {}

  // Finds all effects. `known` must have what the recipe's transforms and formats need. Every thread of the
  // team must call find().
  void find(const Constants& known, Team& team) {
    team.for_each(static_cast<int>(held_.size()), [&](int i) {
      const int kv_head = i / n_formats_ / 2;
      const Side side = kSides[i / n_formats_ % 2];
      held_[i] = held(state_.stored(kv_head, side), recipe_, *find_format(recipe_.ladder[i % n_formats_]),
                      {&known, layer_, kv_head, side}, n_pages_);
    });
    const int n_blocks = (n_rows_ + kPageTokens - 1) / kPageTokens;
    team.for_each(n_heads_ * (n_blocks - 1), [&](int item) {
      look(item % n_heads_, n_blocks - 1 - item / n_heads_);  // the longest come first
    });
  }

  // Returns the squared effect of a KV head's errors, through the outputs of its query heads, summed over
  // positions.
  double squares(int kv_head, Side side, int format) const {
    const int group = n_heads_ / n_kv_heads_;
    double squares = 0;
    for (int r = 0; r < n_rows_; ++r) {
      double sum = 0;
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
        sum += effects_[at(head, side, format) + r];
      squares += sum * sum;
    }
    return squares;
  }

 private:
  std::size_t place(int head, Side side, int format) const {
    return (static_cast<std::size_t>(head) * 2 + static_cast<int>(side)) * n_formats_ + format;
  }
  std::size_t at(int head, Side side, int format) const { return place(head, side, format) * n_rows_; }

  void look(int head, int block) {
    const int first = block * kPageTokens, kv_head = head * n_kv_heads_ / n_heads_;
    HeadAttention attention = state_.attention(head);
    attention.look_at(block,
                      state_.output_gradient(head).slice(first, std::min(kPageTokens, n_rows_ - first)));
    for (const Side side : kSides) {
      for (int format = 0; format < n_formats_; ++format)
        attention.add_effects(side, held_[place(kv_head, side, format)],
                              effects_.data() + at(head, side, format) + first);
    }
  }

  const LayerGradient& state_;
  const Recipe& recipe_;
  int layer_, n_kv_heads_, n_heads_, n_formats_, n_rows_, n_pages_;
  std::vector<PackedMatrix> held_;  // one matrix for each KV head, side and format
  std::vector<double> effects_;     // [n_heads, 2, n_formats, n_rows]
};

}  // namespace

SensitivityEstimate::SensitivityEstimate(const Geometry& geometry, Recipe recipe, Constants known,
                                         int n_threads)
    : geometry_(geometry),
      recipe_(std::move(recipe)),
      known_(std::move(known)),
      n_threads_(n_threads),
      all_(static_cast<std::size_t>(geometry.n_all_kv_heads()) * 2) {}

void SensitivityEstimate::add(int layer, const LayerGradient& state) {
  LayerEffects effects(state, geometry_, layer, recipe_);
  run_team(n_threads_, [&](Team& team) { effects.find(known_, team); });
  for (int head = 0; head < geometry_.kv_heads(layer); ++head) {
    for (const Side side : kSides) {
      std::vector<float>& place = all_[place_of(geometry_, layer, head, side)];
      for (int format = 0; format < static_cast<int>(recipe_.ladder.size()); ++format)
        place.push_back(static_cast<float>(effects.squares(head, side, format) / 2));
    }
  }
}

Sensitivities SensitivityEstimate::sensitivities(int n_scored) const {
  Sensitivities means = all_;
  for (std::vector<float>& place : means)
    for (float& cost : place) cost /= static_cast<float>(n_scored);
  return means;
}

Result<Sensitivities> estimate_sensitivities(DifferentiableModel& model, const Geometry& geometry,
                                             const Recipe& recipe, const Constants& known,
                                             const GradientRequest& request) {
  const int n_scored = static_cast<int>(request.tokens.size()) - request.first_scored;
  SensitivityEstimate estimate(geometry, recipe, known, request.n_threads);
  const auto done = model_gradient(
      model, request, [&](int layer, const LayerGradient& state) { estimate.add(layer, state); });
  if (!done.ok()) return done.error();
  return estimate.sensitivities(n_scored);
}

void add_floor(Sensitivities& sensitivities) {
  constexpr double kShare = 0.03;  // share of the mean
  const std::size_t n_formats = sensitivities.front().size();
  for (std::size_t f = 0; f < n_formats; ++f) {
    double sum = 0;
    for (const std::vector<float>& place : sensitivities) sum += place[f];
    const auto floor = static_cast<float>(kShare * sum / static_cast<double>(sensitivities.size()));
    for (std::vector<float>& place : sensitivities) place[f] += floor;
  }
}

}  // namespace kvant
