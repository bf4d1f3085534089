#include "calibrate/sensitivity_analysis.h"

#include <algorithm>
#include <utility>

#include "base/progress.h"
#include "base/team.h"
#include "base/warn.h"
#include "calibrate/context_weigher.h"
#include "calibrate/gradient_check.h"
#include "calibrate/host_fallback.h"
#include "calibrate/learn_page_metrics.h"
#include "calibrate/model_gradient.h"
#include "calibrate/needs.h"
#include "calibrate/passage_queries.h"
#include "calibrate/weighing.h"
#include "model/gguf_file.h"

namespace kvant {
namespace {

constexpr int kEffectSteps = 2;  // progress steps for weighing a layer, besides gradient_steps()
constexpr int kCheckedTokens = 64;
// Rounding on the device must change predictions by less than this many nats. For comparison, quantizing one
// place in the probe format costs 1e-5 to 1e-2 nats.
constexpr double kMostRounding = 1e-4;

}  // namespace

SensitivityAnalysis::SensitivityAnalysis(const CalibratedModel& model)
    : engine_(model.engine),
      backend_(model.backend),
      reader_(model.reader),
      host_{&model.engine, &model.backend},
      request_(model.request),
      settings_(model.request.settings),
      turns_(model.turns),
      capture_(model.capture),
      constants_(model.constants),
      save_progress_(model.save_progress) {}

SensitivityAnalysis::~SensitivityAnalysis() = default;

Result<std::vector<Sample>> SensitivityAnalysis::drawn_contexts(int n, int length) {
  const int trained = geometry().trained_context;
  const SampleSize size{.contexts = n,
                        .context_length = std::min({length, settings_.context_length, trained}),
                        .seed = settings_.seed};
  return settings_.self ? samples_of_model(
                              *reader_.engine, *reader_.backend, size, [](std::int64_t) {}, request_.stop)
                        : samples_of_text(engine_.tokenizer(), trained, request_.text, size);
}

CalibrationWork SensitivityAnalysis::work_left() const {
  const Geometry& g = geometry();
  const bool reads = needs_page_metrics(request_.recipes, g);
  CalibrationWork work{
      .context_tokens = std::min({kQueryTokens, settings_.context_length, g.trained_context}),
      .file_bytes = static_cast<std::int64_t>(engine_.parts().file.mapping_bytes())};
  const bool differentiates = has_known_layers(engine_.parts());
  if (reads && differentiates) work.contexts += kQueryContexts - contexts_read_.n;
  for (const Recipe& recipe : request_.recipes) {
    if (recipe.budget == 0) continue;
    const std::vector<SensitivityUnit> units = sensitivity_units(g);
    if (settings_.measure || !differentiates) {
      work.tokens += (std::ssize(units) + 1) * std::min(settings_.context_length, g.trained_context);
      continue;
    }
    work.formats = std::max(work.formats, static_cast<int>(recipe.ladder.size()));
    if (!needs_page_metrics({&recipe, 1}, g)) work.contexts += kQueryContexts - kContextsBeforeWeighed;
  }
  return work;
}

// The functions from query_moments() to query_contexts() find the moments of queries.

Result<QueryMoments> SensitivityAnalysis::query_moments() {
  return with_host_fallback(reader_, host_, [&] { return moments_by_gradients(); });
}

Result<QueryMoments> SensitivityAnalysis::moments_by_gradients() {
  const auto contexts = query_contexts();
  if (!contexts.ok()) return contexts.error();
  const auto fit = knows_gradients(contexts->front());
  if (!fit.ok()) return fit.error();
  if (!*fit) return passage_moments(capture_, turns_, /*first=*/0, request_.n_threads);
  std::optional<Progress> progress;
  ContextWeigher weigher({request_.recipes, geometry(), turns_, constants_, request_.n_threads,
                          contexts_done_, [&] { progress->advance(kEffectSteps); }});
  const bool weighs = weigher.has_work() && !settings_.measure;
  for (int c = 0; weighs && c < contexts_read_.n; ++c)
    if (!weigher.knows(c)) contexts_read_ = {};
  const int steps =
      gradient_steps(engine_.parts().hparams) + (weighs ? kEffectSteps * geometry().n_layers : 0);
  progress.emplace(weighs ? "reading queries, weighing layers and heads" : "reading queries",
                   std::int64_t{kQueryContexts - contexts_read_.n} * steps, "steps");
  return kvant::query_moments(
      differentiable(), geometry(),
      {*contexts, settings_.seed, request_.n_threads, [&](int n) { progress->advance(n); }, request_.stop,
       weighs ? &weigher : nullptr, &contexts_read_, save_progress_});
}

Result<std::vector<Sample>> SensitivityAnalysis::query_contexts() {
  auto contexts = drawn_contexts(kQueryContexts, kQueryTokens);
  if (!contexts.ok()) return contexts.error();
  return in_reading_order(std::move(*contexts));
}

// The functions from differentiable() to estimate() work with gradients.

// Returns a differentiable model, whose layers must be known. The model is on the reader's device if the
// device supports the whole model, else on the CPU.
DifferentiableModel& SensitivityAnalysis::differentiable() {
  if (on_device_ && reader_.device == nullptr) {  // the device has run out of memory
    on_device_ = false;
    differentiable_.reset();
  }
  if (differentiable_ == nullptr && reader_.device != nullptr) {
    auto made = make_device_model(reader_.engine->parts(), *reader_.device, kQueryTokens);
    if (made.ok()) {
      on_device_ = true;
      differentiable_ = std::move(made).value();
    } else {
      warn(fmt::format("gradients are computed on the CPU: {}", made.error().message));
    }
  }
  if (differentiable_ == nullptr) differentiable_ = make_host_model(engine_.parts(), request_.n_threads);
  return *differentiable_;
}

// Returns the reader. On a device, the model multiplies in F32.
SampleReader SensitivityAnalysis::reader_in_f32() {
  SampleReader reader = reader_;
  if (reader.device == nullptr) return reader;
  if (in_f32_ == nullptr) in_f32_ = reader.engine->in_f32();
  if (in_f32_ != nullptr) reader.engine = in_f32_.get();
  return reader;
}

// Returns whether model_gradient() gives the gradients of this model, which is tested on `context`. On a
// device, the test runs in F32. With quantized weights, the engines of the CPU and of devices round
// activations to 8 bits. That rounding moves the predictions of some models by more than the tolerance.
Result<bool> SensitivityAnalysis::knows_gradients(const Sample& context) {
  if (!fit_ && !has_known_layers(engine_.parts())) fit_ = false;
  if (!fit_ && contexts_read_.n > 0) fit_ = true;  // contexts were read only because the test had succeeded
  if (fit_) return *fit_;
  const auto start = std::span(context.tokens);
  DifferentiableModel& model = differentiable();
  SampleReader reader = reader_in_f32();
  if (!on_device_ || in_f32_ == nullptr) reader = host_;
  auto fit =
      gradients_fit(*reader.engine, *reader.backend, model,
                    start.first(std::min<std::size_t>(start.size(), kCheckedTokens)), request_.n_threads);
  if (fit.ok()) fit_ = *fit;
  return fit;
}

Status SensitivityAnalysis::weigh(const Recipe& recipe) {
  if (recipe.budget == 0) return {};
  const std::vector<SensitivityUnit> units = sensitivity_units(geometry());
  if (std::all_of(units.begin(), units.end(), [&](const auto& u) { return knows_sensitivity(recipe, u); }))
    return {};
  const auto known = constants_except_sensitivities(recipe, geometry(), constants_);
  if (!known.ok()) return known.error();
  return with_host_fallback(reader_, host_, [&]() -> Status {
    return settings_.measure ? measure(recipe, *known) : estimate(recipe, *known);
  });
}

Status SensitivityAnalysis::estimate(const Recipe& recipe, const Constants& known) {
  auto contexts = query_contexts();
  if (!contexts.ok()) return contexts.error();
  const auto fit = knows_gradients(contexts->front());
  if (!fit.ok()) return fit.error();
  if (!*fit) return measure(recipe, known);
  contexts->erase(contexts->begin(), contexts->begin() + kContextsBeforeWeighed);
  auto sensitivities = weigh_contexts(
      {differentiable(), geometry(), recipe, known, *contexts, settings_.seed + kContextsBeforeWeighed,
       request_.n_threads, request_.stop, save_progress_},
      contexts_done_);
  if (!sensitivities.ok()) return sensitivities.error();
  keep_sensitivities(recipe, geometry(), *sensitivities, constants_);
  return {};
}

// The functions from rounding_at() to knows_sensitivity() run the model with few bits in one place of the
// cache.

// Measures how much the model's predictions change by rounding alone.
Result<double> SensitivityAnalysis::rounding_at(const ProbeSite& site, const Recipe& recipe,
                                                const Sample& context) const {
  const auto start = std::span(context.tokens);
  const auto tokens = start.first(std::min<std::size_t>(start.size(), kQueryTokens));
  const auto probe = make_probe(site, recipe, {tokens.begin(), tokens.end()});
  if (!probe.ok()) return probe.error();
  return (*probe)->divergence(site.barely_changed(recipe), nullptr);
}

// Returns a site on a device, in F32, only if the device rounds so little that formats can be told apart.
Result<ProbeSite> SensitivityAnalysis::site_of_probes(const Recipe& recipe, const Sample& context) {
  const ProbeSite site = probe_site(reader_in_f32(), host_, recipe, constants_);
  if (site.model.engine == host_.engine) return site;
  const auto rounding = rounding_at(site, recipe, context);
  if (!rounding.ok() && stopped()) return rounding.error();
  if (rounding.ok() && *rounding < kMostRounding) return site;
  warn(fmt::format("the CPU runs the model to weigh layers: {}",
                   rounding.ok()
                       ? fmt::format("rounding on the device moves predictions by {:.2g} nats", *rounding)
                       : rounding.error().message));
  return ProbeSite{host_};
}

Result<std::unique_ptr<SensitivityProbe>> SensitivityAnalysis::make_probe(
    const ProbeSite& site, const Recipe& recipe, std::vector<std::int32_t> tokens) const {
  return SensitivityProbe::make(*site.model.engine, *site.model.backend, std::move(tokens),
                                request_.n_threads, site.base(recipe));
}

// Returns the divergence of the model's predictions with the unit in the probe format.
Result<double> SensitivityAnalysis::divergence(const Recipe& recipe, const SensitivityUnit& unit,
                                               const ProbeSite& site, SensitivityProbe& probe) const {
  const Geometry& g = geometry();
  const Recipe probing = probe_recipe(recipe, unit, g.head_dim, site.rest);
  auto constants = constants_for(probing, g, constants_);
  if (!constants.ok()) return constants.error();
  return probe.divergence(probing, std::make_shared<const Constants>(std::move(*constants)));
}

// Runs the model once per unit. This serves models whose gradients cannot be trusted, and requests that
// demand measuring.
Status SensitivityAnalysis::measure(const Recipe& recipe, const Constants& known) {
  std::vector<SensitivityUnit> open;
  for (const SensitivityUnit& unit : sensitivity_units(geometry()))
    if (!knows_sensitivity(recipe, unit)) open.push_back(unit);
  auto context = drawn_contexts(1, settings_.context_length);
  if (!context.ok()) return context.error();
  Progress progress("weighing layers and heads", static_cast<std::int64_t>(open.size()) + 1, "runs");
  const auto site = site_of_probes(recipe, context->front());
  if (!site.ok()) return site.error();
  const auto probe = make_probe(*site, recipe, std::move(context->front().tokens));
  if (!probe.ok()) return probe.error();
  for (const SensitivityUnit& unit : open) {
    progress.advance(1);
    if (stopped()) break;
    KVANT_RETURN_IF_ERROR(measure_unit(recipe, known, unit, *site, **probe));
    save_progress_();
  }
  progress.clear();
  return stopped() ? Status(error("interrupted")) : Status{};
}

// Measures one unit, whose heads share the divergence. `known` holds what the recipe needs besides its
// sensitivities.
Status SensitivityAnalysis::measure_unit(const Recipe& recipe, const Constants& known,
                                         const SensitivityUnit& unit, const ProbeSite& site,
                                         SensitivityProbe& probe) {
  const Geometry& g = geometry();
  const auto measured = divergence(recipe, unit, site, probe);
  if (!measured.ok()) return measured.error();
  std::vector<std::vector<double>> ratios(unit.n_heads);
  run_team(request_.n_threads, [&](Team& team) {
    team.for_each(unit.n_heads, [&](int i) {
      ratios[i] = error_ratios(capture_, recipe, known, unit.layer, unit.first_head + i, unit.side);
    });
  });
  for (int i = 0; i < unit.n_heads; ++i) {
    const int head = unit.first_head + i;
    std::vector<float> sensitivity;
    for (const double ratio : ratios[i])
      sensitivity.push_back(static_cast<float>(*measured / unit.n_heads * ratio));
    constants_.set(unit.layer, head, unit.side, stored_sensitivity(recipe, g, unit.layer, head, unit.side),
                   std::move(sensitivity));
  }
  return {};
}

bool SensitivityAnalysis::knows_sensitivity(const Recipe& recipe, const SensitivityUnit& unit) const {
  const std::string name = stored_sensitivity(recipe, geometry(), unit.layer, unit.first_head, unit.side);
  return !constants_.find(unit.layer, unit.first_head, unit.side, name).empty();
}

}  // namespace kvant
