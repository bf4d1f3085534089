// Calibration of a model that runs elsewhere: in PyTorch, driven by Python's kvant.hf.calibrate. It supplies
// the samples to read, receives the results, and runs the engine's learners on them.
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
  std::vector<std::vector<ChannelTurn>> turns;  // RoPE's rotations of each layer
};

class OutsideCalibration {
 public:
  // text_hash: as in Calibration; method: describes the model. Errors: a recipe that doesn't fit the model,
  // needs nothing, or has a budget for formats that don't shape K's errors.
  static Result<OutsideCalibration> make(OutsideModel model, std::vector<Recipe> recipes,
                                         const CalibrationSettings& settings, std::uint64_t text_hash,
                                         CalibrationMethod method);

  // Returns the samples that the model must read for store(), in the order of `sequence`. The first
  // kSinkTokens of each are at the start of the context, the rest at its offset. tokens, bos and errors: see
  // samples_of_tokens.
  Result<std::vector<Sample>> samples(std::span<const std::int32_t> tokens, std::int32_t bos) const;
  // Returns the contexts for moments of queries, and for sensitivities of recipes with a budget; none if no
  // recipe needs them.
  Result<std::vector<Sample>> query_contexts(std::span<const std::int32_t> tokens, std::int32_t bos) const;

  const Geometry& geometry() const { return model_.geometry; }
  // Stores one layer and all tokens of a sequence, after RoPE: queries [n, n_heads * d], K and V [n,
  // n_kv_heads * d].
  void store(int sequence, int layer, MatrixView<const float> q, MatrixView<const float> k,
             MatrixView<const float> v);
  // Adds second moments [d, d] of the queries that read a KV head, as in QueryMoments.
  void add_moments(int layer, int kv_head, std::span<const double> moments);

  // For recipes with a budget: takes each of query_contexts() in turn, with layers from the last to the
  // first. Moments of a context must be added after its end. Errors: see ContextWeigher.
  bool weighs() const;
  Status begin_context(int context, int n_threads);
  // Takes, after RoPE and for all tokens, queries and the derivatives of the scores (score_gradient.h) by
  // their attention outputs, [n, n_heads * d]; K and V [n, n_kv_heads * d].
  void add_gradient(int layer, MatrixView<const float> q, MatrixView<const float> k,
                    MatrixView<const float> v, MatrixView<const float> gradient);
  void end_context(int context, int n_scored);  // n_scored: number of predictions that count

  // Learns everything that the recipes need. stop: when true, returns the error "interrupted"; null: never.
  Result<Calibration> learn(int n_threads, const std::atomic<bool>* stop);

 private:
  OutsideCalibration(OutsideModel model, std::vector<Recipe> recipes, const CalibrationSettings& settings);
  Status learn_heads(int n_threads, const std::atomic<bool>* stop);

  OutsideModel model_;
  std::vector<Recipe> recipes_;
  Capture capture_;
  QueryMoments moments_;
  std::unique_ptr<ContextWeigher> weigher_;  // set once a context has begun
  Constants weighed_;                        // results of contexts (weighing.h)
  int n_weighed_ = 0;
  Calibration result_;
};

}  // namespace kvant
