#include "calibrate/weighing.h"

#include <fmt/format.h>

#include "base/progress.h"
#include "calibrate/needs.h"
#include "calibrate/sensitivity_estimate.h"

namespace kvant {
namespace {

constexpr const char* kPrefix = "context ";

std::string work_name(int context, const std::string& stored) {
  return fmt::format("{}{}: {}", kPrefix, context, stored);
}

// Calls visit(layer, KV head, side, stored name) in the order of Sensitivities.
template <class Visit>
void for_each_place(const Recipe& recipe, const Geometry& g, const Visit& visit) {
  for (int layer = 0; layer < g.n_layers; ++layer)
    for (int head = 0; head < g.kv_heads(layer); ++head)
      for (const Side side : kSides)
        visit(layer, head, side, stored_sensitivity(recipe, g, layer, head, side));
}

bool is_known(const WeighingRequest& request, const Constants& work, int context) {
  const std::string name = stored_sensitivity(request.recipe, request.geometry, 0, 0, Side::key);
  return !work.find(0, 0, Side::key, work_name(context, name)).empty();
}

Status weigh_context(const WeighingRequest& request, int context, Progress& progress, Constants& work) {
  const Geometry& g = request.geometry;
  const std::vector<std::int32_t>& tokens = request.contexts[context].tokens;
  // Texts differ more than depths do: most positions count, though the first quarter reads little that is
  // sealed.
  const int first_scored = static_cast<int>(tokens.size()) / 4;
  const GradientRequest asked{tokens,
                              first_scored,
                              request.seed + static_cast<std::uint64_t>(context),
                              request.n_threads,
                              [&](int n) { progress.advance(n); },
                              request.stop};
  const auto sensitivities = estimate_sensitivities(request.model, g, request.recipe, request.known, asked);
  if (!sensitivities.ok()) return sensitivities.error();
  for_each_place(request.recipe, g, [&](int layer, int head, Side side, const std::string& name) {
    work.set(layer, head, side, work_name(context, name), (*sensitivities)[place_of(g, layer, head, side)]);
  });
  return {};
}

Sensitivities mean(const WeighingRequest& request, const Constants& work) {
  const int n_contexts = static_cast<int>(request.contexts.size());
  Sensitivities all;
  for_each_place(request.recipe, request.geometry,
                 [&](int layer, int head, Side side, const std::string& name) {
                   std::vector<float>& mean = all.emplace_back(request.recipe.ladder.size());
                   for (int c = 0; c < n_contexts; ++c) {
                     const auto one = work.find(layer, head, side, work_name(c, name));
                     for (std::size_t f = 0; f < mean.size(); ++f)
                       mean[f] += one[f] / static_cast<float>(n_contexts);
                   }
                 });
  return all;
}

}  // namespace

Result<Sensitivities> weigh_contexts(const WeighingRequest& request, Constants& work) {
  const int n_contexts = static_cast<int>(request.contexts.size());
  const int steps = gradient_steps(request.model.parts().hparams);
  Progress progress("weighing layers and heads", std::int64_t{n_contexts} * steps, "steps");
  for (int c = 0; c < n_contexts; ++c) {
    if (is_known(request, work, c)) {
      progress.advance(steps);
    } else {
      KVANT_RETURN_IF_ERROR(weigh_context(request, c, progress, work));
    }
  }
  return mean(request, work);
}

bool is_weighed_context(const std::string& name) {
  return name.starts_with(kPrefix);
}

}  // namespace kvant
