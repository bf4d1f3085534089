// SensitivityAnalysis: what errors of a cache do to a model's predictions. By the model's gradients where
// they are known, else by runs of the model with one place of the cache in few bits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/channel_turn.h"
#include "calibrate/calibrate.h"
#include "calibrate/capture.h"
#include "calibrate/cost_estimate.h"
#include "calibrate/device_model.h"
#include "calibrate/probe_site.h"
#include "calibrate/query_metric.h"
#include "calibrate/sensitivity.h"
#include "calibrate/sensitivity_estimate.h"

namespace kvant {

// A calibration in the making. All outlive the analysis.
struct CalibratedModel {
  Engine& engine;
  AttentionBackend& backend;
  SampleReader& reader;  // becomes the engine where its device runs out of memory
  const CalibrationRequest& request;
  const std::vector<std::vector<ChannelTurn>>& turns;  // RoPE's, of each layer
  const Capture& capture;
  Constants& constants;                 // learned so far; gets the sensitivities
  std::function<void()> save_progress;  // called now and then
};

// Progress is shown on stderr. Once the request's `stop` is set, calls end with the error "interrupted".
class SensitivityAnalysis {
 public:
  explicit SensitivityAnalysis(const CalibratedModel& model);
  ~SensitivityAnalysis();

  // Of the queries that read each head's K: weighed by gradients, or all of the capture's passages alike.
  // Gradients are looked at for the sensitivities as well, of recipes that need both: weigh() finds them.
  Result<QueryMoments> query_moments();
  // The sensitivities to the formats of a recipe's ladder, once all else that it needs is there. Nothing, for
  // a recipe without a budget or where they are known.
  Status weigh(const Recipe& recipe);

  // What both will compute that isn't known yet.
  CalibrationWork work_left() const;

  // What single contexts have given: an analysis that gets it back goes on from there.
  Constants& contexts_done() { return contexts_done_; }
  const Constants& contexts_done() const { return contexts_done_; }
  ReadContexts& contexts_read() { return contexts_read_; }
  const ReadContexts& contexts_read() const { return contexts_read_; }

 private:
  bool stopped() const { return request_.stop != nullptr && *request_.stop; }
  const Geometry& geometry() const { return engine_.geometry(); }
  Result<QueryMoments> moments_by_gradients();
  QueryMoments moments_of_passages() const;
  std::vector<double> moments_of_passages(int layer, int kv_head) const;
  Result<std::vector<Sample>> drawn_contexts(int n, int length);
  Result<std::vector<Sample>> query_contexts();

  DifferentiableModel& differentiable();
  SampleReader reader_in_f32();
  Result<bool> knows_gradients(const Sample& context);
  Status estimate(const Recipe& recipe, const Constants& known);

  Status measure(const Recipe& recipe, const Constants& known);
  Status measure_unit(const Recipe& recipe, const Constants& known, const SensitivityUnit& unit,
                      const ProbeSite& site, SensitivityProbe& probe);
  Result<ProbeSite> site_of_probes(const Recipe& recipe, const Sample& context);
  Result<double> rounding_at(const ProbeSite& site, const Recipe& recipe, const Sample& context) const;
  Result<std::unique_ptr<SensitivityProbe>> make_probe(const ProbeSite& site, const Recipe& recipe,
                                                       std::vector<std::int32_t> tokens) const;
  Result<double> divergence(const Recipe& recipe, const SensitivityUnit& unit, const ProbeSite& site,
                            SensitivityProbe& probe) const;
  bool knows_sensitivity(const Recipe& recipe, const SensitivityUnit& unit) const;

  Engine& engine_;
  AttentionBackend& backend_;
  SampleReader& reader_;
  const SampleReader host_;
  const CalibrationRequest& request_;
  const CalibrationSettings& settings_;
  const std::vector<std::vector<ChannelTurn>>& turns_;
  const Capture& capture_;
  Constants& constants_;
  std::function<void()> save_progress_;
  Constants contexts_done_;
  ReadContexts contexts_read_;
  std::unique_ptr<DifferentiableModel> differentiable_;  // once it is needed
  bool on_device_ = false;                               // that it is
  std::unique_ptr<Engine> in_f32_;                       // reader_in_f32() on a device, once it is needed
  std::optional<bool> fit_;                              // knows_gradients()
};

}  // namespace kvant
