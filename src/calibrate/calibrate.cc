#include "calibrate/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "base/progress.h"
#include "base/team.h"
#include "calibrate/adapter_data.h"
#include "calibrate/capture_state.h"
#include "calibrate/codebook_storage.h"
#include "calibrate/host_fallback.h"
#include "calibrate/learn_head.h"
#include "calibrate/needs.h"
#include "calibrate/quality.h"
#include "calibrate/query_metric.h"
#include "calibrate/read_samples.h"
#include "calibrate/rope_turns.h"
#include "calibrate/samples.h"
#include "calibrate/sealed_gguf.h"
#include "calibrate/sensitivity_analysis.h"
#include "calibrate/turned_moments.h"
#include "calibrate/weighing.h"
#include "format/page_metric.h"

namespace kvant {
namespace {

constexpr double kSecondsBetweenSaves = 60;

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
        host_{&engine, &backend},
        reader_(request.reader.engine == nullptr ? host_ : request.reader),
        turns_(rope_turns(engine.parts(), engine.geometry(), request.n_threads)),
        capture_(engine.geometry(), capture_size(engine.geometry(), request)),
        sensitivities_({engine, backend, reader_, request, turns_, capture_, result_.constants,
                        [this] { save_now_and_then(); }}) {
    result_.model = engine.description();
    result_.fingerprint = engine.fingerprint();
    result_.text_hash = settings_.self ? 0 : fnv1a(request.text);
    result_.settings = settings_;
    result_.method = request.method;
  }

  Result<Calibration> run() {
    for (const Recipe& recipe : request_.recipes) KVANT_RETURN_IF_ERROR(check(recipe));
    KVANT_RETURN_IF_ERROR(with_host_fallback(reader_, host_, [&] { return capture_samples(); }));
    KVANT_RETURN_IF_ERROR(learn());
    round_codebooks(result_.constants);
    KVANT_RETURN_IF_ERROR(learn_metrics());
    KVANT_RETURN_IF_ERROR(weigh());
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
        auto learned = learn_head(capture_, open[i], turns_[open[i].layer], settings_);
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
    const auto moments = sensitivities_.query_moments();
    if (!moments.ok()) return stopped() ? interrupted(capture_.n_sequences()) : moments.error();
    const std::vector<MeanTurn> means = mean_turns(turns_, g);
    run_team(request_.n_threads, [&](Team& team) {
      team.for_each(static_cast<int>(heads.size()), [&](int i) {
        const HeadNeeds& needs = heads[i];
        const int d = g.dim(needs.layer);
        const std::vector<double>& of_head = (*moments)[g.head_index(needs.layer, needs.kv_head)];
        const std::vector<float> metric =
            page_metric_constant(directions_of(needs, means[needs.layer](of_head)), turns_[needs.layer], d);
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

  Status weigh() {
    last_save_ = Clock::now();
    for (const Recipe& recipe : request_.recipes) {
      const Status weighed = sensitivities_.weigh(recipe);
      if (!weighed.ok()) return stopped() ? interrupted(capture_.n_sequences()) : weighed;
    }
    return {};
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
    sensitivities_.contexts_done().for_each(
        [&](int layer, int head, Side side, const std::string& name, const auto& values) {
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
          (is_weighed_context(name) ? sensitivities_.contexts_done() : result_.constants)
              .set(layer, head, side, name, values);
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
  const SampleReader host_;
  SampleReader reader_;
  const std::vector<std::vector<ChannelTurn>> turns_;  // RoPE's, of each layer
  Capture capture_;
  Calibration result_;
  SensitivityAnalysis sensitivities_;
  std::mutex mutex_;
  Clock::time_point last_save_;
};

}  // namespace

Result<Calibration> calibrate(Engine& engine, AttentionBackend& backend, const CalibrationRequest& request) {
  return Calibrator(engine, backend, request).run();
}

}  // namespace kvant
