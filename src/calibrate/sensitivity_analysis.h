// Finds the effect of cache errors on a model's predictions. SensitivityAnalysis uses the model's gradients
// if they can be trusted. Otherwise, SensitivityAnalysis runs the model with few bits in one place of the
// cache.
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

// CalibratedModel is a calibration in progress. All references must outlive the analysis.
struct CalibratedModel {
  Engine& engine;
  AttentionBackend& backend;
  SampleReader& reader;  // becomes the engine on the CPU if its device runs out of memory
  const CalibrationRequest& request;
  const std::vector<std::vector<ChannelTurn>>& turns;  // RoPE's rotations in each layer
  const Capture& capture;
  Constants& constants;                 // the constants learned so far; sensitivities are added
  std::function<void()> save_progress;  // called from time to time
};

// SensitivityAnalysis shows progress on stderr. Once the request's `stop` is true, calls return the error
// "interrupted".
class SensitivityAnalysis {
 public:
  explicit SensitivityAnalysis(const CalibratedModel& model);
  ~SensitivityAnalysis();

  // Returns moments of the queries that read each head's K. Queries are weighted by gradients, or unweighted
  // over the capture's passages. If recipes also need sensitivities, they come from the same gradients, and
  // weigh() finds the results.
  Result<QueryMoments> query_moments();
  // Computes the sensitivities for the formats of a recipe's ladder. Everything else that the recipe needs
  // must be known. The function does nothing for a recipe without a budget, or if the sensitivities are
  // known.
  Status weigh(const Recipe& recipe);

  // Returns the remaining work of query_moments() and weigh().
  CalibrationWork work_left() const;

  // contexts_done() and contexts_read() return results of single contexts. An analysis that gets the results
  // back does not repeat the contexts.
  Constants& contexts_done() { return contexts_done_; }
  const Constants& contexts_done() const { return contexts_done_; }
  ReadContexts& contexts_read() { return contexts_read_; }
  const ReadContexts& contexts_read() const { return contexts_read_; }

 private:
  bool stopped() const { return request_.stop != nullptr && *request_.stop; }
  const Geometry& geometry() const { return engine_.geometry(); }
  Result<QueryMoments> moments_by_gradients();
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
  std::unique_ptr<DifferentiableModel> differentiable_;  // created when needed
  bool on_device_ = false;                               // differentiable_ is on the device
  std::unique_ptr<Engine> in_f32_;                       // the engine of reader_in_f32() on a device, created
                                                         // when needed
  std::optional<bool> fit_;                              // the result of knows_gradients()
};

}  // namespace kvant
