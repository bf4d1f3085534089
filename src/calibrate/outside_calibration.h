// Calibrates a model that runs outside of kvant, in PyTorch under Python's kvant.hf.calibrate.
// OutsideCalibration supplies the samples to read and receives the model's values. OutsideCalibration then
// runs the engine's learners on these values.
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
  std::string description, fingerprint;  // see Calibration's members of these names
  Geometry geometry;
  std::vector<std::vector<ChannelTurn>> turns;  // RoPE's rotations in each layer
};

class OutsideCalibration {
 public:
  // Prepares a calibration of a model that another program runs. text_hash and `method` become members of the
  // result. Returns an error if a recipe does not fit the model or needs nothing. A recipe with a budget must
  // weight K's errors by queries in all formats, or an error is returned.
  static Result<OutsideCalibration> make(OutsideModel model, std::vector<Recipe> recipes,
                                         const CalibrationSettings& settings, std::uint64_t text_hash,
                                         CalibrationMethod method);

  // Returns the samples that the model must read for store(), in the order of `sequence`. The first
  // kSinkTokens tokens of each sample are at the start of the context, and the other tokens are at the
  // sample's offset. samples_of_tokens() describes the arguments and errors.
  Result<std::vector<Sample>> samples(std::span<const std::int32_t> tokens, std::int32_t bos) const;
  // Returns the contexts for moments of queries, and for sensitivities of recipes with a budget. Returns no
  // contexts if no recipe needs them.
  Result<std::vector<Sample>> query_contexts(std::span<const std::int32_t> tokens, std::int32_t bos) const;

  const Geometry& geometry() const { return model_.geometry; }
  // Stores one layer's values for all tokens of a sequence, after RoPE: queries [n, n_heads * d], K and V [n,
  // n_kv_heads * d].
  void store(int sequence, int layer, MatrixView<const float> q, MatrixView<const float> k,
             MatrixView<const float> v);
  // Adds second moments [d, d] of the queries that read a KV head (QueryMoments).
  void add_moments(int layer, int kv_head, std::span<const double> moments);

  // Returns whether a recipe has a budget. The caller then passes each of query_contexts() in turn. The calls
  // are begin_context(), add_gradient() from the last layer to the first, end_context(), and add_moments().
  // The calls return the errors of ContextWeigher.
  bool weighs() const;
  Status begin_context(int context, int n_threads);
  // Takes a layer's values of all tokens after RoPE. Queries and `gradient`, the derivatives of the scores by
  // the attention outputs (score_gradient.h), are [n, n_heads * d]. K and V are [n, n_kv_heads * d].
  void add_gradient(int layer, MatrixView<const float> q, MatrixView<const float> k,
                    MatrixView<const float> v, MatrixView<const float> gradient);
  void end_context(int context, int n_scored);  // n_scored predictions count in the derivatives

  // Learns everything that the recipes need. Once `stop` is true, returns the error "interrupted". `stop` may
  // be null.
  Result<Calibration> learn(int n_threads, const std::atomic<bool>* stop);

 private:
  OutsideCalibration(OutsideModel model, std::vector<Recipe> recipes, const CalibrationSettings& settings);
  Status learn_heads(int n_threads, const std::atomic<bool>* stop);

  OutsideModel model_;
  std::vector<Recipe> recipes_;
  Capture capture_;
  QueryMoments moments_;
  std::unique_ptr<ContextWeigher> weigher_;  // created when the first context begins
  Constants weighed_;                        // the results of contexts (weighing.h)
  int n_weighed_ = 0;
  Calibration result_;
};

}  // namespace kvant
