#include "calibrate/tune.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/progress.h"
#include "calibrate/sealed_gguf.h"
#include "calibrate/sensitivity.h"
#include "calibrate/size_budget.h"
#include "calibrate/tune_state.h"
#include "eval/cache_size.h"
#include "eval/engine_source.h"
#include "format/format.h"
#include "recipe/bit_allocation.h"

namespace kvant {
namespace {

std::uint64_t hash(const std::vector<std::int32_t>& tokens) {
  return fnv1a(fmt::format("{}", fmt::join(tokens, " ")));
}

class Tuner {
 public:
  Tuner(Engine& engine, AttentionBackend& backend, const TuneRequest& request)
      : engine_(engine),
        backend_(backend),
        request_(request),
        state_(request.state_path, identity(engine, request)) {}

  Result<TuneResult> run() {
    KVANT_RETURN_IF_ERROR(start_probes());
    auto trials = search();
    if (!trials.ok()) return trials.error();
    TuneResult result;
    result.trials = std::move(trials).value();
    result.bend = best_trial(result.trials).bend;
    KVANT_RETURN_IF_ERROR(judge(result));
    KVANT_RETURN_IF_ERROR(predict(result));
    state_.remove();
    return result;
  }

 private:
  static std::string identity(const Engine& engine, const TuneRequest& request) {
    std::string texts = fmt::format("{:x}", hash(request.held_out.tokens));
    for (const auto& tokens : request.tuning) texts += fmt::format(" {:x}", hash(tokens));
    return fmt::format("kvant.tune/1 {} {} {} {} {}", engine.fingerprint(), to_string(request.base),
                       request.max_bytes, request.context, texts);
  }

  Result<Recipe> allocated(const SensitivityBend& bend) const {
    const Geometry& g = engine_.geometry();
    return allocate_bytes(
        request_.base, g,
        std::make_shared<const Constants>(bent_sensitivities(*request_.constants, request_.base, g, bend)),
        request_.max_bytes, request_.context);
  }

  Status start_probes() {
    Progress progress("unquantized predictions", std::ssize(request_.tuning), "contexts");
    for (const auto& tokens : request_.tuning) {
      auto probe = SensitivityProbe::make(engine_, backend_, tokens, request_.n_threads);
      if (!probe.ok()) return probe.error();
      probes_.push_back(std::move(probe).value());
      progress.advance(1);
    }
    return {};
  }

  Result<std::vector<BendTrial>> search() {
    Progress progress("trying allocations", request_.trials, "allocations");
    return search_bends(request_.trials, [&](const SensitivityBend& bend) -> Result<double> {
      auto divergence = measure(bend);
      progress.advance(1);
      return divergence;
    });
  }

  // Returns the mean divergence of an allocation over the tuning contexts.
  Result<double> measure(const SensitivityBend& bend) {
    if (const auto known = state_.find(bend)) return *known;
    const auto recipe = allocated(bend);
    if (!recipe.ok()) return recipe.error();
    double sum = 0;
    for (const auto& probe : probes_) {
      if (request_.stop != nullptr && *request_.stop)
        return error("interrupted; run the same command again to continue from here");
      const auto divergence = probe->divergence(*recipe, request_.constants);
      if (!divergence.ok()) return divergence.error();
      sum += *divergence;
    }
    state_.add(bend, sum / static_cast<double>(probes_.size()));
    return sum / static_cast<double>(probes_.size());
  }

  // Returns the recipe in which all heads have the largest format of the ladder that fits the size. Returns
  // nothing if none fits.
  std::optional<Recipe> uniform() const {
    std::optional<Recipe> best;
    double best_bits = 0;
    for (const std::string& format : request_.base.ladder) {
      Recipe recipe = request_.base;
      recipe.name = "all " + format;
      recipe.budget = 0;
      recipe.ladder.clear();
      recipe.k.format = recipe.v.format = format;
      const auto plan = resolve(recipe, engine_.geometry(), request_.constants);
      if (!plan.ok() || mean_cache_bytes(**plan, request_.context) > request_.max_bytes) continue;
      const double bits = find_format(format)->bits(engine_.geometry().head_dim);
      if (bits <= best_bits) continue;
      best_bits = bits;
      best = recipe;
    }
    return best;
  }

  // Evaluates the best allocation and its alternatives on the held-out text, and sets the result's recipe.
  Status judge(TuneResult& result) {
    auto tuned = allocated(result.bend);
    auto plain = allocated({});
    if (!tuned.ok()) return tuned.error();
    if (!plain.ok()) return plain.error();
    tuned->name = "tuned";
    plain->name = "as calibrated";
    std::vector<Recipe> recipes = {*tuned};
    if (!(result.bend == SensitivityBend{})) recipes.push_back(*plain);
    if (const auto same = uniform()) recipes.push_back(*same);
    auto rows = evaluate(recipes, result.chunks);
    if (!rows.ok()) return rows.error();
    result.held_out = std::move(rows).value();
    result.recipe = *tuned;
    if (recipes.size() < 2 || recipes[1].name != plain->name) return {};
    if (result.held_out[1].metrics.kld_mean >= result.held_out[0].metrics.kld_mean) return {};
    std::swap(result.held_out[0], result.held_out[1]);
    result.recipe = *plain;
    result.bend = {};
    return {};
  }

  Result<std::vector<TuneRow>> evaluate(const std::vector<Recipe>& recipes, int& chunks) {
    constexpr int kStepTokens = 512;
    const auto source = [&](const Recipe& recipe) -> Result<std::unique_ptr<LogitSource>> {
      auto resolved = resolve(recipe, engine_.geometry(), request_.constants, backend_.page_order());
      if (!resolved.ok()) return resolved.error();
      const auto plan = backend_.place(std::move(resolved).value());
      if (!plan.ok()) return plan.error();
      return make_engine_source(recipe.name, engine_, backend_, *plan, kStepTokens);
    };
    auto reference = source(*parse_recipe("bf16"));
    if (!reference.ok()) return reference.error();
    std::vector<std::unique_ptr<LogitSource>> sources;
    for (const Recipe& recipe : recipes) {
      auto made = source(recipe);
      if (!made.ok()) return made.error();
      sources.push_back(std::move(made).value());
    }
    const QualityOptions options{.context = request_.held_out_context,
                                 .chunks = 0,
                                 .step_tokens = kStepTokens,
                                 .n_threads = request_.n_threads};
    chunks = chunks_available(request_.held_out, options);
    Progress progress("held-out text", std::int64_t{chunks} * options.context * (std::ssize(sources) + 1),
                      "tokens");
    const auto result = evaluate_quality(request_.held_out, engine_.n_vocab(), **reference, sources, options,
                                         [&](std::int64_t n) { progress.advance(n); });
    if (!result.ok()) return result.error();
    std::vector<TuneRow> rows;
    for (std::size_t i = 1; i < result->rows.size(); ++i)
      rows.push_back({result->rows[i].name, result->rows[i].metrics});
    return rows;
  }

  // Sets the size of the result, and the sum of the sensitivities of its formats.
  Status predict(TuneResult& result) const {
    const Geometry& g = engine_.geometry();
    const auto plan = resolve(result.recipe, g, request_.constants);
    if (!plan.ok()) return plan.error();
    const std::vector<std::string>& ladder = request_.base.ladder;
    const CacheBits bits = mean_bits(**plan, request_.context);
    result.bytes = mean_cache_bytes(**plan, request_.context);
    result.bits_all = bits.all;
    result.bits_sealed = bits.sealed;
    result.constants = constant_size(**plan, request_.context);
    for (int layer = 0; layer < g.n_layers; ++layer) {
      for (int head = 0; head < g.kv_heads(layer); ++head) {
        for (const Side side : kSides) {
          const Format& format = *(*plan)->head(layer, head).side(side).sealed;
          const auto place = std::find(ladder.begin(), ladder.end(), format.name());
          const auto sensitivities =
              request_.constants->find(layer, head, side, sensitivity_constant(request_.base));
          if (place != ladder.end() && !sensitivities.empty())
            result.predicted += sensitivities[place - ladder.begin()];
        }
      }
    }
    return {};
  }

  Engine& engine_;
  AttentionBackend& backend_;
  const TuneRequest& request_;
  TuneState state_;
  std::vector<std::unique_ptr<SensitivityProbe>> probes_;  // one per tuning context
};

}  // namespace

Result<TuneResult> tune(Engine& engine, AttentionBackend& backend, const TuneRequest& request) {
  return Tuner(engine, backend, request).run();
}

}  // namespace kvant
