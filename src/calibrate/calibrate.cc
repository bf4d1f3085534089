#include "calibrate/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/resident_memory.h"
#include "base/team.h"
#include "base/warn.h"
#include "calibrate/adapter_data.h"
#include "calibrate/capture_size.h"
#include "calibrate/capture_state.h"
#include "calibrate/codebook_storage.h"
#include "calibrate/cost_estimate.h"
#include "calibrate/device_adapter_losses.h"
#include "calibrate/host_fallback.h"
#include "calibrate/learn_head.h"
#include "calibrate/learn_page_metrics.h"
#include "calibrate/moments_state.h"
#include "calibrate/needs.h"
#include "calibrate/passage_queries.h"
#include "calibrate/quality.h"
#include "calibrate/read_samples.h"
#include "calibrate/rope_turns.h"
#include "calibrate/samples.h"
#include "calibrate/sealed_gguf.h"
#include "calibrate/sensitivity_analysis.h"
#include "calibrate/weighing.h"
#include "model/weights.h"

namespace kvant {
namespace {

// The code saves a capture this many times less often than the learned constants, because a capture takes up
// to 2 GiB.
constexpr double kCaptureSaves = 6;

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
        capture_(engine.geometry(), capture_size(request.recipes, engine.geometry(), request.settings)),
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
    samples_kept_ = take_up_capture();
    take_up_constants();
    KVANT_RETURN_IF_ERROR(announce());
    KVANT_RETURN_IF_ERROR(with_host_fallback(reader_, host_, [&] { return capture_samples(); }));
    KVANT_RETURN_IF_ERROR(learn());
    round_codebooks(result_.constants);
    KVANT_RETURN_IF_ERROR(learn_metrics());
    KVANT_RETURN_IF_ERROR(weigh());
    for (const Recipe& recipe : request_.recipes) KVANT_RETURN_IF_ERROR(judge(recipe));
    keep_key_factors();
    remove_state();
    return std::move(result_);
  }

 private:
  bool stopped() const { return request_.stop != nullptr && *request_.stop; }
  bool keeps_state() const { return !request_.state_path.empty(); }
  std::string capture_path() const { return request_.state_path + ".capture"; }
  std::string constants_path() const { return request_.state_path + ".partial"; }
  std::string moments_path() const { return request_.state_path + ".moments"; }

  // Refuses at once the recipes that would otherwise fail after hours.
  Status check(const Recipe& recipe) const {
    if (recipe.correction != Correction::none && capture_.size().contexts < 2) {
      return error("the recipe {} has adapters, which need contexts of more than {} tokens to be trained on",
                   label(recipe), kFirstCorrectedQuery);
    }
    const Status fits = check_recipe(recipe, engine_.geometry());
    return fits.ok() ? fits : error("recipe {}: {}", label(recipe), fits.error().message);
  }

  // Returns the remaining work, under the assumption that the CPU does all of it.
  CalibrationWork work_left() const {
    CalibrationWork work = sensitivities_.work_left();
    for (int i = samples_kept_; i < capture_.n_sequences(); ++i) work.tokens += capture_.length(i);
    if (settings_.self && samples_kept_ < capture_.n_sequences())
      work.tokens += written_tokens(sample_size(capture_.size()));
    return work;
  }

  // Prints how long the calibration will take, unless a device reads or the work takes only a few seconds.
  Status announce() {
    constexpr double kFew = 2e11;  // multiplications
    const Hparams& h = engine_.parts().hparams;
    const CalibrationWork work = work_left();
    if (reader_.device != nullptr || multiplications(h, work) < kFew) return {};
    if (!settings_.self) {
      // The estimate takes seconds, so a text that is too short is found first.
      const auto all = samples(sample_size(capture_.size()));
      if (!all.ok()) return all.error();
    }
    const auto cost = estimated_cost(reader_, h, work, request_.n_threads);
    if (!cost.ok()) return cost.error();
    say("kvant: this calibration needs {} on this machine{}\n", readable_cost(*cost),
        capture_.size().samples > 0 ? ", plus the time for learning from samples" : "");
    const std::int64_t available = available_memory_bytes(), more = cost->bytes - resident_bytes();
    if (available > 0 && more > available)
      warn(fmt::format(
          "{} of memory are available, but calibrating needs {} more: the machine may swap or kill the "
          "process",
          readable_bytes(static_cast<double>(available)), readable_bytes(static_cast<double>(more))));
    return {};
  }

  // Hashes everything that captured values and constants depend on, except for the recipes.
  std::uint64_t identity() const {
    const CalibrationSettings& s = settings_;
    const CalibrationMethod& m = request_.method;
    return fnv1a(fmt::format(
        "{} {:x} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", result_.fingerprint, result_.text_hash,
        capture_.size().samples, s.length, s.rows, s.passages, s.self, s.measure, s.seed,
        capture_.size().contexts, capture_.size().context_length, capture_.size().context_queries,
        s.adapter_steps, s.adapters_end_early, s.adapter_batch, m.weights, m.backend, m.algorithm, m.device));
  }

  Status interrupted(int samples_done) {
    if (!keeps_state()) return error("interrupted");
    KVANT_RETURN_IF_ERROR(save_capture(samples_done));
    KVANT_RETURN_IF_ERROR(save_constants());
    return error(
        "interrupted; run the same command again to continue from here ('{}.*' hold the work so far)",
        request_.state_path);
  }

  Result<std::vector<Sample>> samples(const SampleSize& size) {
    if (!settings_.self) {
      return samples_of_text(engine_.tokenizer(), engine_.geometry().trained_context, request_.text, size);
    }
    Progress progress("writing samples", written_tokens(size), "tokens");
    return samples_of_model(
        *reader_.engine, *reader_.backend, size, [&](std::int64_t n) { progress.advance(n); }, request_.stop);
  }

  Status capture_samples() {
    capture_.place(position_offsets(sample_size(capture_.size()), engine_.geometry().trained_context));
    const int done = samples_kept_;
    if (done == capture_.n_sequences()) return {};
    const auto all = samples(sample_size(capture_.size()));
    if (!all.ok()) return all.error();
    Progress progress("reading samples", capture_.n_sequences() - done, "samples");
    last_save_ = Clock::now();
    int n_read = done;
    const auto read = read_samples(
        *reader_.engine, *reader_.backend, *all, done, capture_,
        [&](int n) {
          progress.advance(n);
          n_read += n;
          const double often = n_read == capture_.n_sequences() ? 1 : kCaptureSaves;
          if (is_time_to_save(often)) keep([&] { return save_capture(n_read); });
        },
        request_.stop);
    if (!read.ok()) return read.error();
    progress.clear();
    return *read < capture_.n_sequences() ? interrupted(*read) : Status{};
  }

  Status learn() {
    std::vector<HeadNeeds> open;
    for (HeadNeeds& needs : needs_of(request_.recipes, engine_.geometry())) {
      std::erase_if(needs.constants, [](const auto& c) { return has_own_text(c.need.kind); });
      if (!known(needs)) open.push_back(std::move(needs));
    }
    Progress progress("learning", static_cast<std::int64_t>(open.size()), "heads");
    std::optional<Error> failure;
    last_save_ = Clock::now();
    std::optional<AdapterDevice> device;
    if (reader_.device != nullptr) device.emplace(*reader_.device);
    run_team(request_.n_threads, [&](Team& team) {
      team.for_each(static_cast<int>(open.size()), [&](int i) {
        if (stopped()) return;
        auto learned =
            learn_head(capture_, open[i], turns_[open[i].layer], settings_, device ? &*device : nullptr);
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

  Status learn_metrics() {
    last_save_ = Clock::now();
    KVANT_RETURN_IF_ERROR(learn_sampled_metrics());
    if (!needs_page_metrics(request_.recipes, engine_.geometry())) return {};
    const auto moments = sensitivities_.query_moments();
    if (!moments.ok()) return stopped() ? interrupted(capture_.n_sequences()) : moments.error();
    learn_page_metrics(request_.recipes, engine_.geometry(), *moments, turns_, request_.n_threads,
                       result_.constants);
    return {};
  }

  Status learn_sampled_metrics() {
    constexpr NeedKind kKind = NeedKind::sampled_metric;
    const Geometry& g = engine_.geometry();
    if (!needs_page_metrics(request_.recipes, g, kKind)) return {};
    const auto moments = with_host_fallback(reader_, host_, [&]() -> Result<QueryMoments> {
      const auto text = samples(
          {.passages = 1, .length = std::min(kSampledTokens, g.trained_context), .seed = settings_.seed});
      if (!text.ok()) return text.error();
      return sampled_moments(reader_, text->front(), turns_, request_.n_threads, request_.stop);
    });
    if (!moments.ok()) return stopped() ? interrupted(capture_.n_sequences()) : moments.error();
    learn_page_metrics(request_.recipes, g, *moments, turns_, request_.n_threads, result_.constants, kKind);
    return {};
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
    if (is_time_to_save(1)) keep([&] { return save_constants(); });
  }

  bool is_time_to_save(double often) const {
    const std::chrono::duration<double> wait(request_.seconds_between_saves * often);
    return keeps_state() && !cannot_keep_ && Clock::now() - last_save_ >= wait;
  }
  // Saves by calling `save`. If the disk is full, the calibration continues without saving.
  template <class Save>
  void keep(const Save& save) {
    const Status saved = save();
    last_save_ = Clock::now();
    if (saved.ok()) return request_.kept();
    cannot_keep_ = true;
    warn(
        fmt::format("this calibration cannot be continued after an interruption: {}", saved.error().message));
  }
  Status save_capture(int samples_done) {
    if (samples_done == samples_kept_) return {};
    KVANT_RETURN_IF_ERROR(write_capture(capture_, identity(), samples_done, capture_path()));
    samples_kept_ = samples_done;
    return {};
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

  // Saves a partial calibration, whose fingerprint is identity() in place of the model's.
  Status save_constants() const {
    Calibration partial = result_;
    partial.fingerprint = fmt::format("{:016x}", identity());
    sensitivities_.contexts_done().for_each(
        [&](int layer, int head, Side side, const std::string& name, const auto& values) {
          partial.constants.set(layer, head, side, name, values);
        });
    KVANT_RETURN_IF_ERROR(write_calibration(partial, constants_path()));
    const ReadContexts& read = sensitivities_.contexts_read();
    return read.n > 0 ? write_moments(read, identity(), moments_path()) : Status{};
  }

  // Warns that saved work cannot be resumed. One warning is enough, even if several files are affected.
  void leave_out(const std::string& path, const std::string& reason) {
    if (!std::exchange(left_out_, true))
      warn(fmt::format("the work in '{}' is not continued, because {}", path, reason));
  }
  int take_up_capture() {
    if (!keeps_state()) return 0;
    const auto done = read_capture(capture_path(), identity(), capture_);
    if (!done.ok()) leave_out(capture_path(), done.error().message);
    return done.ok() ? *done : 0;
  }
  void take_up_moments() {
    auto read = read_moments(moments_path(), identity(), engine_.geometry());
    if (!read.ok()) return leave_out(moments_path(), read.error().message);
    sensitivities_.contexts_read() = std::move(*read);
  }
  void take_up_constants() {
    if (!keeps_state()) return;
    take_up_moments();
    std::error_code ignored;
    if (!std::filesystem::exists(constants_path(), ignored)) return;
    auto partial = read_calibration(constants_path());
    if (!partial.ok()) return leave_out(constants_path(), "it is damaged or can't be read");
    if (partial->fingerprint != fmt::format("{:016x}", identity()))
      return leave_out(constants_path(), "it is of another model, text or setting");
    partial->constants.for_each(
        [&](int layer, int head, Side side, const std::string& name, const auto& values) {
          (is_weighed_context(name) ? sensitivities_.contexts_done() : result_.constants)
              .set(layer, head, side, name, values);
        });
  }
  // Stores the factors by which the engine multiplies keys. PyTorch runs a checkpoint of the model without
  // balanced norms, and needs the factors for the same caches.
  void keep_key_factors() {
    const Geometry& g = engine_.geometry();
    const Weights& weights = engine_.parts().weights;
    for (int layer = 0; layer < g.n_layers; ++layer) {
      for (int head = 0; head < g.kv_heads(layer); ++head) {
        const std::span<const float> factors = weights.key_factors(layer, head);
        if (!factors.empty())
          result_.constants.set(layer, head, Side::key, kKeyFactors, {factors.begin(), factors.end()});
      }
    }
  }
  void remove_state() const {
    if (!keeps_state()) return;
    std::error_code ignored;
    for (const std::string& path : {capture_path(), constants_path(), moments_path()})
      std::filesystem::remove(path, ignored);
  }

  Status judge(const Recipe& recipe) {
    const auto quality = quality_of(recipe, result_.constants, capture_, request_.n_threads);
    if (!quality.ok()) return quality.error();
    result_.quality.push_back(*quality);
    return {};
  }

  using Clock = std::chrono::steady_clock;
  Engine& engine_;
  AttentionBackend& backend_;
  const CalibrationRequest& request_;
  CalibrationSettings settings_;
  const SampleReader host_;
  SampleReader reader_;
  const std::vector<std::vector<ChannelTurn>> turns_;  // RoPE's rotations in each layer
  Capture capture_;
  Calibration result_;
  SensitivityAnalysis sensitivities_;
  std::mutex mutex_;
  Clock::time_point last_save_;
  int samples_kept_ = 0;      // the capture's file holds this many samples
  bool cannot_keep_ = false;  // a file could not be written
  bool left_out_ = false;     // leave_out() was called
};

}  // namespace

Result<Calibration> calibrate(Engine& engine, AttentionBackend& backend, const CalibrationRequest& request) {
  return Calibrator(engine, backend, request).run();
}

}  // namespace kvant
