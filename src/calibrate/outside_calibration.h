// Calibration of a model that runs elsewhere: in PyTorch, by Python's kvant.hf.calibrate. It is told what to
// read, hands over what it made of it, and the engine's learners do the rest.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/calibration.h"
#include "calibrate/capture.h"
#include "calibrate/context_weigher.h"
#include "calibrate/query_metric.h"
#include "calibrate/samples.h"
#include "recipe/recipe.h"

namespace kvant {

struct OutsideModel {
  std::string description, fingerprint;  // as Calibration has them
  Geometry geometry;
  std::vector<std::vector<ChannelTurn>> turns;  // RoPE's, of each layer
};

class OutsideCalibration {
 public:
  // text_hash: as Calibration has it; method: what the model is. Errors: a recipe that doesn't fit the model,
  // needs nothing, or has a budget for other formats than those that shape K's errors.
  static Result<OutsideCalibration> make(OutsideModel model, std::vector<Recipe> recipes,
                                         const CalibrationSettings& settings, std::uint64_t text_hash,
                                         CalibrationMethod method);

  // What the model reads to store it, in the order of `sequence`; the first kSinkTokens of each at the start
  // of the context, the rest at its offset. tokens, bos: see samples_of_tokens. Errors: its.
  Result<std::vector<Sample>> samples(std::span<const std::int32_t> tokens, std::int32_t bos) const;
  // Contexts on which moments of queries are taken, and sensitivities of recipes with a budget; none where no
  // recipe needs them.
  Result<std::vector<Sample>> query_contexts(std::span<const std::int32_t> tokens, std::int32_t bos) const;

  const Geometry& geometry() const { return model_.geometry; }
  // Of one layer and all tokens of a sequence, behind RoPE: queries [n, n_heads * d], K and V
  // [n, n_kv_heads * d].
  void store(int sequence, int layer, MatrixView<const float> q, MatrixView<const float> k,
             MatrixView<const float> v);
  // Adds to second moments [d, d] of the queries that read a KV head, as QueryMoments are.
  void add_moments(int layer, int kv_head, std::span<const double> moments);

  // For recipes with a budget: each of query_contexts() in turn, of which layers are handed over from the
  // last to the first. Moments of a context are added only after its end. Errors: see ContextWeigher.
  bool weighs() const;
  Status begin_context(int context, int n_threads);
  // Behind RoPE, of all tokens: queries and the derivative of the scores (score_gradient.h) by what their
  // attention gives, [n, n_heads * d]; K and V [n, n_kv_heads * d].
  void add_gradient(int layer, MatrixView<const float> q, MatrixView<const float> k,
                    MatrixView<const float> v, MatrixView<const float> gradient);
  void end_context(int context, int n_scored);  // n_scored: its predictions that count

  // All that the recipes need. stop: once true, the error "interrupted"; null: never.
  Result<Calibration> learn(int n_threads, const std::atomic<bool>* stop);

 private:
  OutsideCalibration(OutsideModel model, std::vector<Recipe> recipes, const CalibrationSettings& settings);
  Status learn_heads(int n_threads, const std::atomic<bool>* stop);

  OutsideModel model_;
  std::vector<Recipe> recipes_;
  Capture capture_;
  QueryMoments moments_;
  std::unique_ptr<ContextWeigher> weigher_;  // once a context has begun
  Constants weighed_;                        // what contexts gave (weighing.h)
  int n_weighed_ = 0;
  Calibration result_;
};

}  // namespace kvant
