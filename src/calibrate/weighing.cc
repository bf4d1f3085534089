#include "calibrate/weighing.h"

#include <fmt/format.h>

#include "base/progress.h"
#include "calibrate/format_shares.h"
#include "calibrate/needs.h"
#include "calibrate/query_metric.h"
#include "calibrate/sensitivity_estimate.h"

namespace kvant {
namespace {

constexpr const char* kPrefix = "context ";

std::string work_name(int context, const std::string& stored) {
  return fmt::format("{}{}: {}", kPrefix, context, stored);
}

// Calls visit(layer, KV head, side, stored name) for every place, in the order of Sensitivities.
template <class Visit>
void for_each_place(const Recipe& recipe, const Geometry& g, const Visit& visit) {
  for (int layer = 0; layer < g.n_layers; ++layer)
    for (int head = 0; head < g.kv_heads(layer); ++head)
      for (const Side side : kSides)
        visit(layer, head, side, stored_sensitivity(recipe, g, layer, head, side));
}

Status weigh_context(const WeighingRequest& request, int context, Progress& progress, Constants& work) {
  const std::vector<std::int32_t>& tokens = request.contexts[context].tokens;
  const GradientRequest asked{tokens,
                              first_scored_query(static_cast<int>(tokens.size())),
                              request.seed + static_cast<std::uint64_t>(context),
                              request.n_threads,
                              [&](int n) { progress.advance(n); },
                              request.stop};
  const auto sensitivities =
      estimate_sensitivities(request.model, request.geometry, request.recipe, request.known, asked);
  if (!sensitivities.ok()) return sensitivities.error();
  keep_weighed(request.recipe, request.geometry, context, *sensitivities, work);
  return {};
}

}  // namespace

Result<Sensitivities> weigh_contexts(const WeighingRequest& request, Constants& work) {
  const int n_contexts = static_cast<int>(request.contexts.size());
  const int steps = gradient_steps(request.model.parts().hparams);
  std::vector<int> open;
  for (int c = 0; c < n_contexts; ++c)
    if (!is_weighed(request.recipe, request.geometry, c, work)) open.push_back(c);
  Progress progress("weighing layers and heads", std::ssize(open) * steps, "steps");
  for (const int c : open) {
    KVANT_RETURN_IF_ERROR(weigh_context(request, c, progress, work));
    if (request.context_done) request.context_done();
  }
  return mean_of_weighed(request.recipe, request.geometry, n_contexts, work);
}

Sensitivities mean_of_weighed(const Recipe& recipe, const Geometry& geometry, int n_contexts,
                              const Constants& work) {
  Sensitivities all;
  for_each_place(recipe, geometry, [&](int layer, int head, Side side, const std::string& name) {
    std::vector<float>& mean = all.emplace_back(recipe.ladder.size());
    for (int c = 0; c < n_contexts; ++c) {
      const auto one = work.find(layer, head, side, work_name(c, name));
      for (std::size_t f = 0; f < mean.size(); ++f) mean[f] += one[f] / static_cast<float>(n_contexts);
    }
  });
  return all;
}

void keep_sensitivities(const Recipe& recipe, const Geometry& geometry, const Sensitivities& mean,
                        Constants& constants) {
  Sensitivities shared = shared_over_formats(mean, geometry, recipe);
  add_floor(shared);
  for_each_place(recipe, geometry, [&](int layer, int head, Side side, const std::string& name) {
    constants.set(layer, head, side, name, shared[place_of(geometry, layer, head, side)]);
  });
}

Result<Constants> constants_except_sensitivities(const Recipe& recipe, const Geometry& geometry,
                                                 const Constants& stored) {
  Recipe unspread = recipe;
  unspread.budget = 0;
  return constants_for(unspread, geometry, stored);
}

bool is_weighed(const Recipe& recipe, const Geometry& geometry, int context, const Constants& work) {
  const std::string name = stored_sensitivity(recipe, geometry, 0, 0, Side::key);
  return !work.find(0, 0, Side::key, work_name(context, name)).empty();
}

void keep_weighed(const Recipe& recipe, const Geometry& geometry, int context,
                  const Sensitivities& sensitivities, Constants& work) {
  for_each_place(recipe, geometry, [&](int layer, int head, Side side, const std::string& name) {
    work.set(layer, head, side, work_name(context, name),
             sensitivities[place_of(geometry, layer, head, side)]);
  });
}

bool is_weighed_context(const std::string& name) {
  return name.starts_with(kPrefix);
}

}  // namespace kvant
