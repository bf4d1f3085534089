#include "calibrate/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "base/progress.h"
#include "base/team.h"
#include "base/warn.h"
#include "calibrate/adapter_data.h"
#include "calibrate/capture_state.h"
#include "calibrate/codebook_storage.h"
#include "calibrate/device_model.h"
#include "calibrate/device_probe.h"
#include "calibrate/gradient_check.h"
#include "calibrate/learn_head.h"
#include "calibrate/needs.h"
#include "calibrate/principal_directions.h"
#include "calibrate/probe_site.h"
#include "calibrate/quality.h"
#include "calibrate/query_metric.h"
#include "calibrate/read_samples.h"
#include "calibrate/rope_turns.h"
#include "calibrate/samples.h"
#include "calibrate/sealed_gguf.h"
#include "calibrate/sensitivity.h"
#include "calibrate/turned_moments.h"
#include "calibrate/weighing.h"
#include "format/page_metric.h"
#include "recipe/bit_allocation.h"

namespace kvant {
namespace {

constexpr double kSecondsBetweenSaves = 60;

// Contexts on which sensitivities are estimated. Half as many tokens left a noise of 30 % in those of K.
constexpr int kWeighedContexts = 4;
constexpr int kWeighedTokens = 1024;
// On which queries are read; of the same length.
constexpr int kQueryContexts = 6;
constexpr int kCheckedTokens = 64;
constexpr int kCorrectedLayers = 6;
// Nats: what places cost in the probe format is 1e-5 to 1e-2.
constexpr double kMostRounding = 1e-4;

constexpr int kContextQueries = 256;
constexpr std::int64_t kMaxCaptureBytes = std::int64_t{2} << 30;

bool trains_adapters(const CalibrationRequest& request) {
  return std::any_of(request.recipes.begin(), request.recipes.end(),
                     [](const Recipe& recipe) { return recipe.correction != Correction::none; });
}

// What is learned on the contexts that are weighed, or on passages.
constexpr bool has_own_text(NeedKind kind) {
  return kind == NeedKind::sensitivity || kind == NeedKind::metric;
}

bool learns_from_samples(const Geometry& geometry, const CalibrationRequest& request) {
  for (const HeadNeeds& head : needs_of(request.recipes, geometry)) {
    for (const ScopedNeed& constant : head.constants)
      if (!has_own_text(constant.need.kind)) return true;
  }
  return false;
}

CaptureSize capture_size(const Geometry& geometry, const CalibrationRequest& request) {
  const CalibrationSettings& s = request.settings;
  CaptureSize size{learns_from_samples(geometry, request) ? s.samples : 0, s.length, s.rows, s.passages};
  size.seed = s.seed;
  if (!trains_adapters(request)) return bounded(geometry, size, kMaxCaptureBytes);
  size.contexts = s.contexts;
  size.context_length = std::min(s.context_length, geometry.trained_context);
  size.first_query = kFirstCorrectedQuery;
  size.context_queries = std::clamp(size.context_length - kFirstCorrectedQuery, 0, kContextQueries);
  if (size.context_queries == 0) size.contexts = 0;
  return bounded(geometry, size, kMaxCaptureBytes);
}

class Calibrator {
 public:
  Calibrator(Engine& engine, AttentionBackend& backend, const CalibrationRequest& request)
      : engine_(engine),
        backend_(backend),
        request_(request),
        settings_(request.settings),
        reader_(request.reader.engine == nullptr ? SampleReader{&engine, &backend} : request.reader),
        capture_(engine.geometry(), capture_size(engine.geometry(), request)) {
    result_.model = engine.description();
    result_.fingerprint = engine.fingerprint();
    result_.text_hash = settings_.self ? 0 : fnv1a(request.text);
    result_.settings = settings_;
    result_.method = request.method;
  }

  Result<Calibration> run() {
    for (const Recipe& recipe : request_.recipes) KVANT_RETURN_IF_ERROR(check(recipe));
    KVANT_RETURN_IF_ERROR(capture_samples());
    KVANT_RETURN_IF_ERROR(learn());
    round_codebooks(result_.constants);
    KVANT_RETURN_IF_ERROR(learn_metrics());
    for (const Recipe& recipe : request_.recipes) KVANT_RETURN_IF_ERROR(weigh(recipe));
    for (const Recipe& recipe : request_.recipes) KVANT_RETURN_IF_ERROR(judge(recipe));
    remove_state();
    return std::move(result_);
  }

 private:
  bool stopped() const { return request_.stop != nullptr && *request_.stop; }
  bool keeps_state() const { return !request_.state_path.empty(); }
  std::string capture_path() const { return request_.state_path + ".capture"; }
  std::string constants_path() const { return request_.state_path + ".partial"; }

  // What would fail after hours is refused now.
  Status check(const Recipe& recipe) const {
    if (recipe.correction != Correction::none && capture_.size().contexts < 2) {
      return error("the recipe {} has adapters, which need contexts of more than {} tokens to be trained on",
                   label(recipe), kFirstCorrectedQuery);
    }
    const Status fits = check_recipe(recipe, engine_.geometry());
    return fits.ok() ? fits : error("recipe {}: {}", label(recipe), fits.error().message);
  }

  // All that captured values and constants depend on, but the recipes.
  std::uint64_t identity() const {
    const CalibrationSettings& s = settings_;
    const CalibrationMethod& m = request_.method;
    return fnv1a(fmt::format("{} {:x} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", result_.fingerprint,
                             result_.text_hash, capture_.size().samples, s.length, s.rows, s.passages, s.self,
                             s.measure, s.seed, capture_.size().contexts, capture_.size().context_length,
                             s.adapter_steps, m.weights, m.backend, m.algorithm, m.device));
  }

  Status interrupted(int samples_done) {
    if (!keeps_state()) return error("interrupted");
    KVANT_RETURN_IF_ERROR(write_capture(capture_, identity(), samples_done, capture_path()));
    KVANT_RETURN_IF_ERROR(save_constants());
    return error("interrupted; run the same command again to go on from here ('{}.*' hold the work so far)",
                 request_.state_path);
  }

  SampleSize sample_size() const {
    const CaptureSize& kept = capture_.size();
    return {kept.samples, kept.passages, kept.length, kept.contexts, kept.context_length, settings_.seed};
  }

  Result<std::vector<Sample>> samples() {
    const SampleSize size = sample_size();
    if (!settings_.self) {
      return samples_of_text(engine_.tokenizer(), engine_.geometry().trained_context, request_.text, size);
    }
    Progress progress("writing samples", written_tokens(size), "tokens");
    return samples_of_model(
        *reader_.engine, *reader_.backend, size, [&](std::int64_t n) { progress.advance(n); }, request_.stop);
  }

  Status capture_samples() {
    capture_.place(position_offsets(sample_size(), engine_.geometry().trained_context));
    int done = keeps_state() ? read_capture(capture_path(), identity(), capture_) : 0;
    if (done == capture_.n_sequences()) return {};
    const auto all = samples();
    if (!all.ok()) return all.error();
    Progress progress("reading samples", capture_.n_sequences(), "samples");
    progress.advance(done);
    const auto read = read_samples(
        *reader_.engine, *reader_.backend, *all, done, capture_, [&](int n) { progress.advance(n); },
        request_.stop);
    if (!read.ok()) return read.error();
    progress.clear();
    return *read < capture_.n_sequences() ? interrupted(*read) : Status{};
  }

  Status learn() {
    take_up_constants();
    std::vector<HeadNeeds> open;
    for (HeadNeeds& needs : needs_of(request_.recipes, engine_.geometry())) {
      std::erase_if(needs.constants, [](const auto& c) { return has_own_text(c.need.kind); });
      if (!known(needs)) open.push_back(std::move(needs));
    }
    Progress progress("learning", static_cast<std::int64_t>(open.size()), "heads");
    std::optional<Error> failure;
    last_save_ = Clock::now();
    run_team(request_.n_threads, [&](Team& team) {
      team.for_each(static_cast<int>(open.size()), [&](int i) {
        if (stopped()) return;
        auto learned = learn_head(capture_, open[i], settings_);
        const std::lock_guard lock(mutex_);
        if (!learned.ok()) {
          failure = learned.error();
          return;
        }
        keep(open[i], *learned);
        progress.advance(1);
        save_now_and_then();
      });
    });
    progress.clear();
    if (failure) return *failure;
    return stopped() ? interrupted(capture_.n_sequences()) : Status{};
  }

  // Of the queries that read each head's K, for the formats that shape their errors.
  Status learn_metrics() {
    const Geometry& g = engine_.geometry();
    std::vector<HeadNeeds> heads = needs_of(request_.recipes, g);
    for (HeadNeeds& needs : heads)
      std::erase_if(needs.constants, [](const auto& c) { return c.need.kind != NeedKind::metric; });
    std::erase_if(heads, [](const HeadNeeds& needs) { return needs.constants.empty(); });
    if (heads.empty()) return {};
    const auto turns = rope_turns(engine_.parts(), g, request_.n_threads);
    const auto moments = moments_of_queries(turns);
    if (!moments.ok()) return stopped() ? interrupted(capture_.n_sequences()) : moments.error();
    const std::vector<MeanTurn> means = mean_turns(turns, g);
    run_team(request_.n_threads, [&](Team& team) {
      team.for_each(static_cast<int>(heads.size()), [&](int i) {
        const HeadNeeds& needs = heads[i];
        const int d = g.dim(needs.layer);
        const std::vector<double>& of_head = (*moments)[g.head_index(needs.layer, needs.kv_head)];
        const std::vector<float> metric =
            page_metric_constant(directions_of(needs, means[needs.layer](of_head)), turns[needs.layer], d);
        const std::lock_guard lock(mutex_);
        for (const ScopedNeed& constant : needs.constants)
          result_.constants.set(needs.layer, needs.kv_head, needs.side, constant.stored, metric);
      });
    });
    return {};
  }

  std::vector<float> directions_of(const HeadNeeds& needs, const std::vector<double>& moments) {
    const int d = engine_.geometry().dim(needs.layer);
    Constants known;
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < needs.transforms.size(); ++i) {
        const std::string name = transform_constant_name(needs.transforms, i);
        const auto found = result_.constants.find(needs.layer, needs.kv_head, needs.side,
                                                  (needs.without_sink ? "" : "nosink/") + name);
        known.set(needs.layer, needs.kv_head, needs.side, name, {found.begin(), found.end()});
      }
    }
    const auto transform =
        Transform::make(needs.transforms, d, {&known, needs.layer, needs.kv_head, needs.side});
    KVANT_CHECK(transform.ok(), "transforms that were just learned");
    return query_metric(moments, *transform, d);
  }

  // Weighed by the model's gradients, where these are known; else all of the passages' queries alike.
  Result<QueryMoments> moments_of_queries(const std::vector<std::vector<ChannelTurn>>& turns) {
    const auto contexts = drawn_contexts(kQueryContexts, kWeighedTokens);
    if (!contexts.ok()) return contexts.error();
    const auto fit = knows_gradients(contexts->front());
    if (!fit.ok()) return fit.error();
    if (!*fit) return moments_of_passages(turns);
    Progress progress("reading queries",
                      std::int64_t{kQueryContexts} * gradient_steps(engine_.parts().hparams), "steps");
    return query_moments(
        differentiable(), engine_.geometry(),
        {*contexts, settings_.seed, request_.n_threads, [&](int n) { progress.advance(n); }, request_.stop});
  }

  QueryMoments moments_of_passages(const std::vector<std::vector<ChannelTurn>>& turns) const {
    const Geometry& g = engine_.geometry();
    QueryMoments all(g.n_all_kv_heads());
    run_team(request_.n_threads, [&](Team& team) {
      for (int layer = 0; layer < g.n_layers; ++layer) {
        team.for_each(g.kv_heads(layer), [&](int kv_head) {
          all[g.head_index(layer, kv_head)] = moments_of_passages(layer, kv_head, turns[layer]);
        });
      }
    });
    return all;
  }
  std::vector<double> moments_of_passages(int layer, int kv_head,
                                          const std::vector<ChannelTurn>& turns) const {
    const Geometry& g = engine_.geometry();
    const int d = g.dim(layer), group = g.group(layer);
    std::vector<double> sums(static_cast<std::size_t>(d) * d);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int p = 0; p < capture_.size().passages; ++p) {
        std::vector<float> queries = capture_.passage_queries(p, layer, head);
        const MatrixView<float> rows(queries.data(), static_cast<int>(queries.size()) / d, d);
        for (int r = 0; r < rows.rows; ++r)
          turn_row(turns, -(r < kSinkTokens ? r : capture_.passage_position(p) + r), rows.row(r));
        const std::vector<double> more = second_moments(rows);
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
      }
    }
    return sums;
  }

  // Of known layers: on the reader's device where that has all it takes, else on the CPU.
  DifferentiableModel& differentiable() {
    if (differentiable_ == nullptr && reader_.device != nullptr) {
      auto made = make_device_model(reader_.engine->parts(), *reader_.device, kWeighedTokens);
      if (made.ok()) {
        device_model_ = made->get();
        differentiable_ = std::move(made).value();
      } else {
        warn(fmt::format("gradients are computed on the CPU: {}", made.error().message));
      }
    }
    if (differentiable_ == nullptr) differentiable_ = make_host_model(engine_.parts(), request_.n_threads);
    return *differentiable_;
  }

  // Whether the gradients of this model are those of model_gradient(); `context` shows it. On the CPU:
  // devices round activations to 8 bits, which alone can be more than the tolerance.
  Result<bool> knows_gradients(const Sample& context) {
    if (!fit_ && !has_known_layers(engine_.parts())) fit_ = false;
    if (fit_) return *fit_;
    const auto start = std::span(context.tokens);
    auto fit =
        gradients_fit(engine_, backend_, differentiable(),
                      start.first(std::min<std::size_t>(start.size(), kCheckedTokens)), request_.n_threads);
    if (fit.ok()) fit_ = *fit;
    return fit;
  }

  // The sensitivity to the ladder's formats, once all else that the recipe needs is there.
  Status weigh(const Recipe& recipe) {
    if (recipe.budget == 0) return {};
    const std::vector<SensitivityUnit> units = sensitivity_units(engine_.geometry());
    if (std::all_of(units.begin(), units.end(), [&](const auto& u) { return knows_sensitivity(recipe, u); }))
      return {};
    Recipe unspread = recipe;
    unspread.budget = 0;
    const auto known = constants_for(unspread, engine_.geometry(), result_.constants);
    if (!known.ok()) return known.error();
    if (settings_.measure) return measure_sensitivities(recipe, *known);
    const auto contexts = drawn_contexts(kWeighedContexts, kWeighedTokens);
    if (!contexts.ok()) return contexts.error();
    const auto fit = knows_gradients(contexts->front());
    if (!fit.ok()) return fit.error();
    if (!*fit) return measure_sensitivities(recipe, *known);
    auto sensitivities = weigh_contexts({differentiable(), engine_.geometry(), recipe, *known, *contexts,
                                         settings_.seed, request_.n_threads, request_.stop},
                                        weighed_);
    if (!sensitivities.ok()) return stopped() ? interrupted(capture_.n_sequences()) : sensitivities.error();
    KVANT_RETURN_IF_ERROR(correct_first_layers(recipe, *known, contexts->front(), *sensitivities));
    add_floor(*sensitivities);
    keep(recipe, *sensitivities);
    return {};
  }

  // To large errors in its first layers the network answers far more than to second order. There the
  // estimates are raised to what runs of the model with all heads of a side in the probe format measure.
  Status correct_first_layers(const Recipe& recipe, const Constants& known, const Sample& context,
                              Sensitivities& sensitivities) {
    const Geometry& g = engine_.geometry();
    const std::string& probe_name = probe_format(recipe, g.head_dim).name();
    const auto place =
        std::find(recipe.ladder.begin(), recipe.ladder.end(), probe_name) - recipe.ladder.begin();
    const int n_layers = std::min(kCorrectedLayers, g.n_layers);
    Progress progress("correcting the first layers", n_layers * 2 + 1, "runs");
    const auto measure = probe_of_sides(recipe, known, context, n_layers);
    if (!measure.ok()) return measure.error();
    for (int layer = 0; layer < n_layers; ++layer) {
      for (const Side side : kSides) {
        progress.advance(1);
        if (stopped()) return interrupted(capture_.n_sequences());
        const auto measured = (*measure)(layer, side);
        if (!measured.ok()) return measured.error();
        double estimated = 0;
        for (int head = 0; head < g.kv_heads(layer); ++head)
          estimated += sensitivities[place_of(g, layer, head, side)][place];
        const double factor = estimated > 0 ? std::max(1.0, *measured / estimated) : 1;
        for (int head = 0; head < g.kv_heads(layer); ++head)
          for (float& s : sensitivities[place_of(g, layer, head, side)]) s *= static_cast<float>(factor);
      }
    }
    return {};
  }

  // The divergence that a layer's side in the probe format makes.
  using MeasuredSide = std::function<Result<double>(int layer, Side side)>;

  // Where gradients are computed: on the device, or by the engine on the CPU.
  Result<MeasuredSide> probe_of_sides(const Recipe& recipe, const Constants& known, const Sample& context,
                                      int n_layers) {
    const Geometry& g = engine_.geometry();
    if (device_model_ != nullptr) {
      auto made = DeviceProbe::make(*device_model_, g, context.tokens, n_layers, request_.n_threads);
      if (!made.ok()) return made.error();
      return MeasuredSide(
          [&, probe = std::shared_ptr<DeviceProbe>(std::move(made).value())](int layer, Side side) {
            return probe->divergence(recipe, known, layer, side);
          });
    }
    const ProbeSite site{{&engine_, &backend_}};
    auto made = make_probe(site, recipe, context.tokens);
    if (!made.ok()) return made.error();
    return MeasuredSide([&, this, site, probe = std::shared_ptr<SensitivityProbe>(std::move(made).value())](
                            int layer, Side side) {
      return divergence(recipe, {layer, 0, g.kv_heads(layer), side}, site, *probe);
    });
  }

  void keep(const Recipe& recipe, const Sensitivities& sensitivities) {
    const Geometry& g = engine_.geometry();
    for (int layer = 0; layer < g.n_layers; ++layer)
      for (int head = 0; head < g.kv_heads(layer); ++head)
        for (const Side side : kSides)
          result_.constants.set(layer, head, side, stored_sensitivity(recipe, g, layer, head, side),
                                sensitivities[place_of(g, layer, head, side)]);
  }

  // On a device only where the engine there rounds so little that formats can be told apart.
  Result<ProbeSite> site_of_probes(const Recipe& recipe, const Sample& context) const {
    const ProbeSite host{{&engine_, &backend_}};
    const ProbeSite site = probe_site(reader_, host.model, recipe, result_.constants);
    if (site.model.engine == host.model.engine) return site;
    const auto start = std::span(context.tokens);
    const auto tokens = start.first(std::min<std::size_t>(start.size(), kWeighedTokens));
    const auto probe = make_probe(site, recipe, {tokens.begin(), tokens.end()});
    if (!probe.ok()) return probe.error();
    const auto rounding = (*probe)->divergence(site.barely_changed(recipe), nullptr);
    if (!rounding.ok()) return rounding.error();
    if (*rounding < kMostRounding) return site;
    warn(fmt::format(
        "the CPU runs the model to weigh layers: rounding on the device moves predictions by {:.2g} nats",
        *rounding));
    return host;
  }
  Result<std::unique_ptr<SensitivityProbe>> make_probe(const ProbeSite& site, const Recipe& recipe,
                                                       std::vector<std::int32_t> tokens) const {
    return SensitivityProbe::make(*site.model.engine, *site.model.backend, std::move(tokens),
                                  request_.n_threads, site.base(recipe));
  }

  // Of the model's predictions with the unit in the probe format.
  Result<double> divergence(const Recipe& recipe, const SensitivityUnit& unit, const ProbeSite& site,
                            SensitivityProbe& probe) {
    const Geometry& g = engine_.geometry();
    const Recipe probing = probe_recipe(recipe, unit, g.head_dim, site.rest);
    auto constants = constants_for(probing, g, result_.constants);
    if (!constants.ok()) return constants.error();
    return probe.divergence(probing, std::make_shared<const Constants>(std::move(*constants)));
  }

  // Unit by unit, with a run of the model for each: for models whose gradients don't fit, and on demand.
  Status measure_sensitivities(const Recipe& recipe, const Constants& known) {
    std::vector<SensitivityUnit> open;
    for (const SensitivityUnit& unit : sensitivity_units(engine_.geometry()))
      if (!knows_sensitivity(recipe, unit)) open.push_back(unit);
    auto context = drawn_contexts(1, settings_.context_length);
    if (!context.ok()) return context.error();
    Progress progress("weighing layers and heads", static_cast<std::int64_t>(open.size()) + 1, "runs");
    const auto site = site_of_probes(recipe, context->front());
    if (!site.ok()) return site.error();
    const auto probe = make_probe(*site, recipe, std::move(context->front().tokens));
    if (!probe.ok()) return probe.error();
    last_save_ = Clock::now();
    for (const SensitivityUnit& unit : open) {
      progress.advance(1);
      if (stopped()) break;
      KVANT_RETURN_IF_ERROR(measure_sensitivity(recipe, known, unit, *site, **probe));
      save_now_and_then();
    }
    progress.clear();
    return stopped() ? interrupted(capture_.n_sequences()) : Status{};
  }

  // The heads of a unit share its divergence. known: what the recipe needs beside its sensitivities.
  Status measure_sensitivity(const Recipe& recipe, const Constants& known, const SensitivityUnit& unit,
                             const ProbeSite& site, SensitivityProbe& probe) {
    const Geometry& g = engine_.geometry();
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
      result_.constants.set(unit.layer, head, unit.side,
                            stored_sensitivity(recipe, g, unit.layer, head, unit.side),
                            std::move(sensitivity));
    }
    return {};
  }
  bool knows_sensitivity(const Recipe& recipe, const SensitivityUnit& unit) const {
    const std::string name =
        stored_sensitivity(recipe, engine_.geometry(), unit.layer, unit.first_head, unit.side);
    return !result_.constants.find(unit.layer, unit.first_head, unit.side, name).empty();
  }

  Result<std::vector<Sample>> drawn_contexts(int n, int length) {
    const int trained = engine_.geometry().trained_context;
    const SampleSize size{.contexts = n,
                          .context_length = std::min({length, settings_.context_length, trained}),
                          .seed = settings_.seed};
    return settings_.self ? samples_of_model(
                                *reader_.engine, *reader_.backend, size, [](std::int64_t) {}, request_.stop)
                          : samples_of_text(engine_.tokenizer(), trained, request_.text, size);
  }

  void save_now_and_then() {
    if (!keeps_state() || Clock::now() - last_save_ <= std::chrono::duration<double>(kSecondsBetweenSaves))
      return;
    (void)save_constants();  // on a full disk, the end of the work tells
    last_save_ = Clock::now();
  }

  bool known(const HeadNeeds& needs) const {
    return std::all_of(needs.constants.begin(), needs.constants.end(), [&](const ScopedNeed& constant) {
      return !result_.constants.find(needs.layer, needs.kv_head, needs.side, constant.stored).empty();
    });
  }
  void keep(const HeadNeeds& needs, LearnedConstants& learned) {
    for (auto& [name, values] : learned)
      result_.constants.set(needs.layer, needs.kv_head, needs.side, name, std::move(values));
  }

  // The partial file is a calibration whose model is the identity.
  Status save_constants() const {
    Calibration partial = result_;
    partial.fingerprint = fmt::format("{:016x}", identity());
    weighed_.for_each([&](int layer, int head, Side side, const std::string& name, const auto& values) {
      partial.constants.set(layer, head, side, name, values);
    });
    return write_calibration(partial, constants_path());
  }
  void take_up_constants() {
    if (!keeps_state() || !std::filesystem::exists(constants_path())) return;
    auto partial = read_calibration(constants_path());
    if (!partial.ok() || partial->fingerprint != fmt::format("{:016x}", identity())) return;
    partial->constants.for_each(
        [&](int layer, int head, Side side, const std::string& name, const auto& values) {
          (is_weighed_context(name) ? weighed_ : result_.constants).set(layer, head, side, name, values);
        });
  }
  void remove_state() const {
    if (!keeps_state()) return;
    std::error_code ignored;
    std::filesystem::remove(capture_path(), ignored);
    std::filesystem::remove(constants_path(), ignored);
  }

  Status judge(const Recipe& recipe) {
    const Geometry& g = engine_.geometry();
    auto constants = constants_for(recipe, g, result_.constants);
    if (!constants.ok()) return constants.error();
    const auto plan = resolve(recipe, g, std::make_shared<const Constants>(std::move(*constants)));
    if (!plan.ok()) return plan.error();
    result_.quality.push_back(measure_quality(capture_, **plan, request_.n_threads));
    return {};
  }

  using Clock = std::chrono::steady_clock;
  Engine& engine_;
  AttentionBackend& backend_;
  const CalibrationRequest& request_;
  CalibrationSettings settings_;
  SampleReader reader_;
  Capture capture_;
  Calibration result_;
  Constants weighed_;                                    // of weigh_contexts()
  std::unique_ptr<DifferentiableModel> differentiable_;  // once it is needed
  DeviceModel* device_model_ = nullptr;                  // that, where it is on a device
  std::optional<bool> fit_;                              // knows_gradients()
  std::mutex mutex_;
  Clock::time_point last_save_;
};

}  // namespace

Result<Calibration> calibrate(Engine& engine, AttentionBackend& backend, const CalibrationRequest& request) {
  return Calibrator(engine, backend, request).run();
}

}  // namespace kvant
