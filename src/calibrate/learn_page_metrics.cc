#include "calibrate/learn_page_metrics.h"

#include <mutex>

#include "base/check.h"
#include "base/team.h"
#include "calibrate/needs.h"
#include "calibrate/turned_moments.h"
#include "format/page_metric.h"
#include "transform/transform.h"

namespace kvant {
namespace {

// Returns the heads of all recipes that need metrics of a kind, with only these needs.
std::vector<HeadNeeds> metrics_of(std::span<const Recipe> recipes, const Geometry& geometry, NeedKind kind) {
  std::vector<HeadNeeds> heads = needs_of(recipes, geometry);
  for (HeadNeeds& needs : heads)
    std::erase_if(needs.constants, [kind](const auto& c) { return c.need.kind != kind; });
  std::erase_if(heads, [](const HeadNeeds& needs) { return needs.constants.empty(); });
  return heads;
}

// Returns the transforms before a head's format, from constants by scoped name.
Transform transform_of(const HeadNeeds& needs, int d, const Constants& constants) {
  Constants known;
  for (std::size_t i = 0; i < needs.transforms.size(); ++i) {
    const std::string name = transform_constant_name(needs.transforms, i);
    const auto found =
        constants.find(needs.layer, needs.kv_head, needs.side, (needs.without_sink ? "" : "nosink/") + name);
    known.set(needs.layer, needs.kv_head, needs.side, name, {found.begin(), found.end()});
  }
  auto transform = Transform::make(needs.transforms, d, {&known, needs.layer, needs.kv_head, needs.side});
  KVANT_CHECK(transform.ok(), "transforms that were just learned");
  return std::move(*transform);
}

}  // namespace

bool needs_page_metrics(std::span<const Recipe> recipes, const Geometry& geometry, NeedKind kind) {
  return !metrics_of(recipes, geometry, kind).empty();
}

void learn_page_metrics(std::span<const Recipe> recipes, const Geometry& geometry,
                        const QueryMoments& moments, const std::vector<std::vector<ChannelTurn>>& turns,
                        int n_threads, Constants& constants, NeedKind kind) {
  const std::vector<HeadNeeds> heads = metrics_of(recipes, geometry, kind);
  const std::vector<MeanTurn> means = mean_turns(turns, geometry);
  std::mutex mutex;
  run_team(n_threads, [&](Team& team) {
    team.for_each(static_cast<int>(heads.size()), [&](int i) {
      const HeadNeeds& needs = heads[i];
      const int d = geometry.dim(needs.layer);
      std::unique_lock lock(mutex);
      const Transform transform = transform_of(needs, d, constants);
      lock.unlock();
      const std::vector<double> seen =
          means[needs.layer](moments[geometry.head_index(needs.layer, needs.kv_head)]);
      const std::vector<float> metric =
          page_metric_constant(query_metric(seen, transform, d), turns[needs.layer], d);
      lock.lock();
      for (const ScopedNeed& constant : needs.constants)
        constants.set(needs.layer, needs.kv_head, needs.side, constant.stored, metric);
    });
  });
}

}  // namespace kvant
