#include "calibrate/outside_calibration.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/team.h"
#include "calibrate/capture_size.h"
#include "calibrate/codebook_storage.h"
#include "calibrate/learn_head.h"
#include "calibrate/learn_page_metrics.h"
#include "calibrate/needs.h"
#include "calibrate/quality.h"
#include "calibrate/weighing.h"
#include "recipe/plan.h"

namespace kvant {
namespace {

Status check(const Recipe& recipe, const Geometry& geometry) {
  const Status fits = check_recipe(recipe, geometry);
  if (!fits.ok()) return error("recipe {}: {}", label(recipe), fits.error().message);
  if (!needs_calibration(recipe, geometry)) return error("the recipe {} needs no calibration", label(recipe));
  if (recipe.budget > 0 &&
      (requires_calibration(recipe, geometry) || !needs_page_metrics({&recipe, 1}, geometry)))
    return error(
        "the recipe {} has a budget: without encode=shaped, or with codebooks or learned transforms, what "
        "each "
        "layer and head is worth is found out for GGUF models alone",
        label(recipe));
  return {};
}

// OutsideLayer is a layer of a model that runs outside of kvant. All views must outlive the object.
class OutsideLayer final : public LayerGradient {
 public:
  OutsideLayer(const Geometry& geometry, int layer, MatrixView<const float> q, MatrixView<const float> k,
               MatrixView<const float> v, MatrixView<const float> gradient)
      : d_(geometry.dim(layer)),
        group_(geometry.group(layer)),
        shape_{.scale = geometry.softmax_scale},
        q_(q),
        k_(k),
        v_(v),
        gradient_(gradient) {}

  MatrixView<const float> stored(int kv_head, Side side) const override {
    return head_of(side == Side::key ? k_ : v_, kv_head);
  }
  HeadAttention attention(int head) const override {
    const int kv_head = head / group_;
    return {shape_, head_of(q_, head), stored(kv_head, Side::key), stored(kv_head, Side::value)};
  }
  MatrixView<const float> output_gradient(int head) const override { return head_of(gradient_, head); }
  // The caller passes moments to add_moments(), so there are none here.
  std::vector<double> query_moments(int) const override { return {}; }

 private:
  MatrixView<const float> head_of(MatrixView<const float> rows, int head) const {
    return {rows.data + static_cast<std::ptrdiff_t>(head) * d_, rows.rows, d_, rows.stride};
  }

  int d_, group_;
  AttentionShape shape_;
  MatrixView<const float> q_, k_, v_, gradient_;
};

}  // namespace

OutsideCalibration::OutsideCalibration(OutsideModel model, std::vector<Recipe> recipes,
                                       const CalibrationSettings& settings)
    : model_(std::move(model)),
      recipes_(std::move(recipes)),
      capture_(model_.geometry, capture_size(recipes_, model_.geometry, settings)),
      moments_(model_.geometry.n_all_kv_heads()) {
  capture_.place(position_offsets(sample_size(capture_.size()), model_.geometry.trained_context));
  result_.model = model_.description;
  result_.fingerprint = model_.fingerprint;
  result_.settings = settings;
}

Result<OutsideCalibration> OutsideCalibration::make(OutsideModel model, std::vector<Recipe> recipes,
                                                    const CalibrationSettings& settings,
                                                    std::uint64_t text_hash, CalibrationMethod method) {
  for (const Recipe& recipe : recipes) KVANT_RETURN_IF_ERROR(check(recipe, model.geometry));
  OutsideCalibration made(std::move(model), std::move(recipes), settings);
  made.result_.text_hash = text_hash;
  made.result_.method = std::move(method);
  return made;
}

Result<std::vector<Sample>> OutsideCalibration::samples(std::span<const std::int32_t> tokens,
                                                        std::int32_t bos) const {
  return samples_of_tokens(tokens, bos, model_.geometry.trained_context, sample_size(capture_.size()));
}

Result<std::vector<Sample>> OutsideCalibration::query_contexts(std::span<const std::int32_t> tokens,
                                                               std::int32_t bos) const {
  if (!needs_page_metrics(recipes_, model_.geometry)) return std::vector<Sample>();
  const int trained = model_.geometry.trained_context;
  const int length = std::min({kQueryTokens, result_.settings.context_length, trained});
  auto contexts = samples_of_tokens(
      tokens, bos, trained,
      {.contexts = kQueryContexts, .context_length = length, .seed = result_.settings.seed});
  if (!contexts.ok()) return contexts.error();
  return in_reading_order(std::move(*contexts));
}

void OutsideCalibration::store(int sequence, int layer, MatrixView<const float> q, MatrixView<const float> k,
                               MatrixView<const float> v) {
  const Geometry& g = model_.geometry;
  const int d = g.dim(layer);
  for (int token = 0; token < k.rows; ++token) {
    if (!capture_.keeps(sequence, token)) continue;
    for (int head = 0; head < g.kv_heads(layer); ++head) {
      capture_.store(sequence, token, layer, head, Side::key, k.row(token) + head * d);
      capture_.store(sequence, token, layer, head, Side::value, v.row(token) + head * d);
    }
    for (int head = 0; head < g.n_heads; ++head)
      capture_.store_query(sequence, token, layer, head, q.row(token) + head * d);
  }
}

void OutsideCalibration::add_moments(int layer, int kv_head, std::span<const double> moments) {
  std::vector<double>& sums = moments_[model_.geometry.head_index(layer, kv_head)];
  sums.resize(moments.size());
  for (std::size_t i = 0; i < moments.size(); ++i) sums[i] += moments[i];
}

bool OutsideCalibration::weighs() const {
  return std::any_of(recipes_.begin(), recipes_.end(), [](const Recipe& r) { return r.budget > 0; });
}

Status OutsideCalibration::begin_context(int context, int n_threads) {
  if (weigher_ == nullptr) {
    weigher_ = std::make_unique<ContextWeigher>(ContextWeigher::Request{
        recipes_, model_.geometry, model_.turns, result_.constants, n_threads, weighed_, [] {}});
  }
  return weigher_->begin(context, moments_);
}

void OutsideCalibration::add_gradient(int layer, MatrixView<const float> q, MatrixView<const float> k,
                                      MatrixView<const float> v, MatrixView<const float> gradient) {
  KVANT_CHECK(weigher_ != nullptr, "a layer of a context that has begun");
  weigher_->visit(layer, OutsideLayer(model_.geometry, layer, q, k, v, gradient));
}

void OutsideCalibration::end_context(int context, int n_scored) {
  weigher_->end(context, n_scored);
  n_weighed_ = std::max(n_weighed_, context + 1 - kContextsBeforeWeighed);
}

Status OutsideCalibration::learn_heads(int n_threads, const std::atomic<bool>* stop) {
  std::vector<HeadNeeds> all = needs_of(recipes_, model_.geometry);
  for (HeadNeeds& needs : all)
    std::erase_if(needs.constants, [](const auto& c) { return has_own_text(c.need.kind); });
  std::erase_if(all, [](const HeadNeeds& needs) { return needs.constants.empty(); });
  std::mutex mutex;
  std::optional<Error> failure;
  run_team(n_threads, [&](Team& team) {
    team.for_each(static_cast<int>(all.size()), [&](int i) {
      if (stop != nullptr && *stop) return;
      const HeadNeeds& needs = all[i];
      auto learned = learn_head(capture_, needs, model_.turns[needs.layer], result_.settings);
      const std::lock_guard lock(mutex);
      if (!learned.ok()) {
        failure = learned.error();
        return;
      }
      for (auto& [name, values] : *learned)
        result_.constants.set(needs.layer, needs.kv_head, needs.side, name, std::move(values));
    });
  });
  if (failure) return *failure;
  if (stop != nullptr && *stop) return error("interrupted");
  return {};
}

Result<Calibration> OutsideCalibration::learn(int n_threads, const std::atomic<bool>* stop) {
  KVANT_RETURN_IF_ERROR(learn_heads(n_threads, stop));
  round_codebooks(result_.constants);
  if (needs_page_metrics(recipes_, model_.geometry)) {
    for (const std::vector<double>& sums : moments_) KVANT_CHECK(!sums.empty(), "moments of all heads");
    learn_page_metrics(recipes_, model_.geometry, moments_, model_.turns, n_threads, result_.constants);
  }
  for (const Recipe& recipe : recipes_) {
    if (recipe.budget == 0) continue;
    KVANT_CHECK(n_weighed_ > 0, "contexts of a recipe with a budget");
    keep_sensitivities(recipe, model_.geometry,
                       mean_of_weighed(recipe, model_.geometry, n_weighed_, weighed_), result_.constants);
  }
  for (const Recipe& recipe : recipes_) {
    const auto quality = quality_of(recipe, result_.constants, capture_, n_threads);
    if (!quality.ok()) return quality.error();
    result_.quality.push_back(*quality);
  }
  return std::move(result_);
}

}  // namespace kvant
