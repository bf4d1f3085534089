// The figures of a report as one JSON document, which the page draws and --json writes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/engine_bench.h"
#include "eval/greedy/greedy_eval.h"
#include "eval/layer_eval.h"
#include "eval/limits/limit_eval.h"
#include "eval/quality_eval.h"

namespace kvant {

// The cache bytes of a recipe.
struct MemoryRow {
  std::string name;
  std::vector<std::int64_t> bytes;  // by context
};

// The command lines that measure each part separately.
struct ReportCommands {
  std::string report, quality, layers, limits, greedy, speed;
};

struct ReportFigures {
  std::string model, text;  // files
  std::string description;  // the model's description
  std::string date;         // "2026-11-21"
  int n_threads = 1;
  ReportCommands commands;
  QualityResult quality;
  std::vector<LayerResult> layers;  // the longest context last
  LimitResult limits;
  GreedyResult greedy;
  BenchOptions speed_options;
  std::vector<BenchRow> speed;
  std::vector<int> memory_contexts;  // tokens, ascending
  std::vector<MemoryRow> memory;
};

// {"schema":"kvant.report/2",..}: see docs/reference/json.md.
nlohmann::ordered_json report_to_json(const ReportFigures& figures);

}  // namespace kvant
