#include "calibrate/probe_site.h"

#include <fmt/format.h>

#include <memory>

#include "base/page_size.h"
#include "base/warn.h"
#include "calibrate/needs.h"
#include "calibrate/sensitivity.h"
#include "recipe/plan.h"

namespace kvant {
namespace {

// In this format, each group of 32 channels has its own scale, so errors are .4 % of the largest value.
constexpr const char* kNearlyExact = "tok8g32";

Status can_run(const SampleReader& model, const Recipe& recipe, const Constants& learned) {
  const Geometry& g = model.engine->geometry();
  auto constants = constants_for(recipe, g, learned);
  if (!constants.ok()) return constants.error();
  const auto plan = resolve(recipe, g, std::make_shared<const Constants>(std::move(*constants)));
  if (!plan.ok()) return plan.error();
  const auto placed = model.backend->place(*plan);
  return placed.ok() ? Status{} : placed.error();
}

// Returns an error if probes of one of the sides cannot run.
Status can_probe(const SampleReader& model, const Recipe& recipe, const std::string& rest,
                 const Constants& learned) {
  const Geometry& g = model.engine->geometry();
  for (const Side side : kSides) {
    const SensitivityUnit unit{0, 0, g.kv_heads(0), side};
    KVANT_RETURN_IF_ERROR(can_run(model, probe_recipe(recipe, unit, g.head_dim, rest), learned));
  }
  return {};
}

}  // namespace

Recipe ProbeSite::base(const Recipe& recipe) const {
  Recipe all;
  if (rest == all.k.format) return all;
  all.k.format = all.v.format = rest;
  all.sink = recipe.sink;
  return all;
}

Recipe ProbeSite::barely_changed(const Recipe& recipe) const {
  Recipe changed = base(recipe);
  changed.sink += changed.sink < kPageTokens ? 1 : -1;
  return changed;
}

ProbeSite probe_site(const SampleReader& reader, const SampleReader& host, const Recipe& recipe,
                     const Constants& learned) {
  ProbeSite on_host{host};
  if (reader.engine == host.engine) return on_host;
  Status refused;
  for (const char* rest : {on_host.rest.c_str(), kNearlyExact}) {
    refused = can_probe(reader, recipe, rest, learned);
    if (refused.ok()) return {reader, rest};
  }
  warn(fmt::format("the CPU runs the model to weigh layers: {}", refused.error().message));
  return on_host;
}

}  // namespace kvant
