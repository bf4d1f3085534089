#include "calibrate/learn_head.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "base/check.h"
#include "calibrate/adapter_data.h"
#include "calibrate/adapter_training.h"
#include "calibrate/channel_energies.h"
#include "calibrate/codebook.h"
#include "calibrate/device_adapter_losses.h"
#include "calibrate/head_priority.h"
#include "calibrate/transform_learner.h"
#include "format/channel_energy.h"
#include "recipe/head_mix.h"
#include "transform/transform.h"

namespace kvant {
namespace {

// One of this many contexts evaluates the adapters, and the adapters learn from the other contexts.
constexpr int kContextsPerJudged = 4;
const std::vector<float> kSwitchedOff{0.0F};
// The integers of the tail's format lie between -119 and 119 (format/int8.cc).
constexpr float kLargestInteger = 119;

// Returns a separate seed for every (layer, head, side). The seed does not depend on which other constants
// are learned.
std::uint64_t head_seed(std::uint64_t seed, const HeadNeeds& needs) {
  std::uint64_t mixed = seed;
  for (const int part : {needs.layer, needs.kv_head, static_cast<int>(needs.side)})
    mixed = mixed * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(part) + 1;
  return mixed;
}

class HeadLearner {
 public:
  HeadLearner(const Capture& capture, const HeadNeeds& needs, std::span<const ChannelTurn> turns,
              const CalibrationSettings& settings, AdapterDevice* device)
      : capture_(capture),
        needs_(needs),
        turns_(turns),
        settings_(settings),
        device_(device),
        seed_(head_seed(settings.seed, needs)) {}

  Result<LearnedConstants> run() {
    rows_ = capture_.rows(needs_.layer, needs_.kv_head, needs_.side, needs_.without_sink);
    KVANT_CHECK(!rows_.empty(), "nothing was captured");
    KVANT_RETURN_IF_ERROR(learn_transforms());
    for (const ScopedNeed& constant : needs_.constants) {
      switch (constant.need.kind) {
        case NeedKind::transform:
          break;
        case NeedKind::format:
          learn_format(constant);
          break;
        case NeedKind::tail:
          learn_universal_scale(constant);
          break;
        case NeedKind::priority:
          learn_priority(constant);
          break;
        case NeedKind::adapter:
          learn_adapters(constant);
          break;
        case NeedKind::metric:
        case NeedKind::sampled_metric:
        case NeedKind::sensitivity:
          KVANT_CHECK(false, "a sensitivity shows in the model's predictions, not in captured values");
      }
    }
    return std::move(learned_);
  }

 private:
  MatrixView<float> of(std::vector<float>& values) const {  // [n, d]
    const int d = capture_.geometry().dim(needs_.layer);
    return {values.data(), static_cast<int>(values.size()) / d, d};
  }
  MatrixView<float> rows() { return of(rows_); }
  void keep(const std::string& stored, std::vector<float> values) {
    learned_.emplace_back(stored, std::move(values));
  }
  const ScopedNeed& need_of(const std::string& name) const {
    const auto found = std::find_if(needs_.constants.begin(), needs_.constants.end(), [&](const auto& c) {
      return c.need.kind == NeedKind::transform && c.need.name == name;
    });
    KVANT_CHECK(found != needs_.constants.end(), "a calibrated step that needs nothing");
    return *found;
  }

  // Learns each transform's constants and applies the transform to the rows.
  Status learn_transforms() {
    for (std::size_t i = 0; i < needs_.transforms.size(); ++i) {
      const TransformKind* kind = find_transform_kind(needs_.transforms[i]);
      KVANT_CHECK(kind != nullptr, "a recipe with an unknown transform");
      const std::string name = transform_constant_name(needs_.transforms, i);
      if (kind->calibrated) {
        const TransformLearner* learner = find_transform_learner(kind->name);
        KVANT_CHECK(learner != nullptr, "a calibrated transform that nobody learns");
        if (learner->reads_attention && queries_.empty()) read_attention(i);
        std::vector<float> found = learner->learn({needs_.side, rows(), of(keys_), of(queries_)});
        known_.set(needs_.layer, needs_.kv_head, needs_.side, name, found);
        keep(need_of(name).stored, std::move(found));
      }
      const auto step = kind->make(rows().cols, constants(), name);
      if (!step.ok()) return step.error();
      (*step)->forward(rows());
      if (needs_.side == Side::key && !queries_.empty()) (*step)->query(of(queries_), nullptr);
    }
    return {};
  }
  // Reads K of the tokens without transforms. The function also reads the passages' queries, transformed to
  // match K after its first n_steps transforms.
  void read_attention(std::size_t n_steps) {
    keys_ = capture_.rows(needs_.layer, needs_.kv_head, Side::key, needs_.without_sink);
    const int group = capture_.geometry().group(needs_.layer);
    for (int head = needs_.kv_head * group; head < (needs_.kv_head + 1) * group; ++head)
      for (int p = 0; p < capture_.size().passages; ++p)
        std::ranges::move(capture_.passage_queries(p, needs_.layer, head), std::back_inserter(queries_));
    KVANT_CHECK(!queries_.empty(), "no queries were captured");
    if (needs_.side == Side::value) return;
    const std::span<const std::string> before(needs_.transforms.data(), n_steps);
    const auto transform = Transform::make(before, rows().cols, constants());
    KVANT_CHECK(transform.ok(), "transforms that were just learned");
    transform->query(of(queries_), nullptr);
  }
  HeadConstants constants() const { return {&known_, needs_.layer, needs_.kv_head, needs_.side}; }

  void learn_format(const ScopedNeed& constant) {
    if (constant.need.name == kChannelEnergy) return learn_channel_energies(constant);
    const auto shape = constant.need.format->codebook_shape();
    KVANT_CHECK(shape.has_value(), "a format's constant that nobody learns");
    const Codebook book = learn_codebook(*shape, rows(), seed_);
    known_.set(needs_.layer, needs_.kv_head, needs_.side, constant.need.name, book.centroids);
    keep(constant.stored, book.centroids);
    keep(constant.stored + kErrorsSuffix,
         {static_cast<float>(book.error_before), static_cast<float>(book.error_after),
          static_cast<float>(book.error_int8)});
  }

  // Learns the energies of channels. Transforms mix the channels of RoPE's pairs, so with transforms, each
  // channel counts alone.
  void learn_channel_energies(const ScopedNeed& constant) {
    if (queries_.empty()) read_attention(needs_.transforms.size());
    const bool turned = needs_.side == Side::key && needs_.transforms.empty();
    keep(constant.stored,
         channel_energies(rows(), of(queries_), turned ? turns_ : std::span<const ChannelTurn>()));
  }

  // Learns the tail's scale. The tail's format stores unsealed and protected tokens, so the sink's tokens are
  // included.
  void learn_universal_scale(const ScopedNeed& constant) {
    KVANT_CHECK(constant.need.size == 1, "a tail's constant that nobody learns");
    std::vector<float> all = capture_.rows(needs_.layer, needs_.kv_head, needs_.side, false);
    const auto transform = Transform::make(needs_.transforms, rows().cols, constants());
    KVANT_CHECK(transform.ok(), "transforms that were just learned");
    transform->forward({all.data(), static_cast<int>(all.size()) / rows().cols, rows().cols});
    float largest = 0;
    for (const float x : all) largest = std::max(largest, std::abs(x));
    keep(constant.stored, {largest / kLargestInteger});
  }

  void learn_priority(const ScopedNeed& constant) {
    for (const PriorityMetric& metric : priority_metrics()) {
      if (constant.need.name != head_priority_constant(metric.name)) continue;
      keep(constant.stored, {static_cast<float>(metric.measure(rows()))});
      return;
    }
    KVANT_CHECK(false, "a priority that nobody measures");
  }

  // Trains the adapters. The request for the queries' map trains both maps together.
  void learn_adapters(const ScopedNeed& constant) {
    if (constant.need.name != kQueryAdapter) return;
    CorrectedKeys keys{needs_.layer,
                       needs_.kv_head,
                       constant.corrected,
                       {},
                       {rows().cols, constants()},
                       needs_.without_sink ? kSinkTokens : 0,
                       constant.correction};
    auto transform = Transform::make(needs_.transforms, rows().cols, constants());
    KVANT_CHECK(transform.ok(), "transforms that were just learned");
    keys.transform = std::move(*transform);
    const int batch = std::min(settings_.adapter_batch, capture_.size().context_queries);
    std::vector<AdapterContext> training, judged;
    for (int c = 0; c < capture_.size().contexts; ++c) {
      std::vector<AdapterContext>& to = c % kContextsPerJudged == 0 ? judged : training;
      std::ranges::move(adapter_contexts(capture_, keys, c, batch), std::back_inserter(to));
    }
    const int group = capture_.geometry().group(needs_.layer);
    const AdapterOptions options{.max_steps = settings_.adapter_steps,
                                 .ends_early = settings_.adapters_end_early,
                                 .groups = (settings_.adapter_batch + batch - 1) / batch,
                                 .seed = seed_};
    const TrainedAdapters trained = device_ == nullptr ? train_adapters(training, judged, group, options)
                                                       : device_->train(training, judged, group, options);
    keep(constant.stored, trained.helps ? rounded_to_f16(trained.weights.query) : kSwitchedOff);
    keep(sibling(constant, kKeyAdapter).stored,
         trained.helps ? rounded_to_f16(trained.weights.key) : kSwitchedOff);
    keep(constant.stored + kLossesSuffix,
         {static_cast<float>(trained.loss_before), static_cast<float>(trained.loss_after)});
  }
  // Returns the need called `name` for the same format and correction.
  const ScopedNeed& sibling(const ScopedNeed& of, const std::string& name) const {
    const auto found = std::find_if(needs_.constants.begin(), needs_.constants.end(), [&](const auto& c) {
      return c.need.name == name && c.corrected == of.corrected && c.correction == of.correction;
    });
    KVANT_CHECK(found != needs_.constants.end(), "one adapter without the other");
    return *found;
  }

  const Capture& capture_;
  const HeadNeeds& needs_;
  std::span<const ChannelTurn> turns_;
  const CalibrationSettings& settings_;
  AdapterDevice* device_;
  std::uint64_t seed_;
  std::vector<float> rows_;     // [n, d], transformed by the transforms that were learned so far
  std::vector<float> keys_;     // K of the same tokens, if a transform's learner reads attention
  std::vector<float> queries_;  // [m, d], the passages' queries, transformed to match K
  Constants known_;             // the keys are plain names
  LearnedConstants learned_;
};

}  // namespace

Result<LearnedConstants> learn_head(const Capture& capture, const HeadNeeds& needs,
                                    std::span<const ChannelTurn> turns, const CalibrationSettings& settings,
                                    AdapterDevice* device) {
  return HeadLearner(capture, needs, turns, settings, device).run();
}

}  // namespace kvant
