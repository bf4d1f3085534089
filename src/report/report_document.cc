#include "report/report_document.h"

#include "eval/greedy/greedy_report.h"
#include "eval/layer_report.h"
#include "eval/limits/limit_report.h"
#include "eval/position_profile.h"
#include "eval/report_json.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDriftBins = 16;

Json tail_to_json(const PositionScores& positions) {
  Json shares = Json::array(), klds = Json::array();
  for (const TailPoint& point : divergence_tail(positions)) {
    shares.push_back(point.share);
    klds.push_back(point.kld);
  }
  return {{"share", shares}, {"kld", klds}};
}

// Bins are labelled with absolute positions. The scored half of a chunk starts after the chunk's middle.
Json drift_to_json(const QualityResult& quality, const PositionScores& positions) {
  Json bins = Json::array();
  for (const DriftBin& bin : divergence_drift(positions, quality.chunks, kDriftBins)) {
    bins.push_back({{"first", quality.context / 2 + 1 + bin.first},
                    {"count", bin.count},
                    {"kld", bin.kld},
                    {"top1", bin.top1}});
  }
  return bins;
}

Json quality_to_json(const QualityResult& quality, const std::string& model) {
  Json json = eval_to_json(quality, model);
  for (std::size_t i = 0; i < quality.rows.size(); ++i) {
    json["results"][i]["tail"] = tail_to_json(quality.rows[i].positions);
    json["results"][i]["drift"] = drift_to_json(quality, quality.rows[i].positions);
  }
  return json;
}

Json memory_to_json(const ReportFigures& figures) {
  Json results = Json::array();
  for (const MemoryRow& row : figures.memory) results.push_back({{"recipe", row.name}, {"bytes", row.bytes}});
  return {{"contexts", figures.memory_contexts}, {"results", results}};
}

}  // namespace

nlohmann::ordered_json report_to_json(const ReportFigures& figures) {
  const ReportCommands& commands = figures.commands;
  Json layers = Json::array();
  for (const LayerResult& result : figures.layers) layers.push_back(layers_to_json(result, figures.model));
  return {{"schema", "kvant.report/2"},
          {"model", figures.model},
          {"description", figures.description},
          {"text", figures.text},
          {"date", figures.date},
          {"threads", figures.n_threads},
          {"commands",
           {{"report", commands.report},
            {"quality", commands.quality},
            {"layers", commands.layers},
            {"limits", commands.limits},
            {"greedy", commands.greedy},
            {"speed", commands.speed}}},
          {"quality", quality_to_json(figures.quality, figures.model)},
          {"layers", layers},
          {"limits", limits_to_json(figures.limits, figures.model)},
          {"greedy", greedy_to_json(figures.greedy, figures.model)},
          {"speed", Json::parse(bench_to_json(figures.speed, figures.speed_options, figures.model,
                                              figures.n_threads))},
          {"memory", memory_to_json(figures)}};
}

}  // namespace kvant
