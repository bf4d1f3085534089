// Puts the figures of a report into one JSON document. The page draws the document, and --json writes it.
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

// Holds the bytes of one recipe's cache.
struct MemoryRow {
  std::string name;
  // bytes[i] is the size at ReportFigures::memory_contexts[i] tokens.
  std::vector<std::int64_t> bytes;
};

// Holds the command lines that measure each part of the report separately.
struct ReportCommands {
  std::string report, quality, layers, limits, greedy, speed;
};

struct ReportFigures {
  std::string model, text;  // names of files
  // Describes the model, as Engine::description() does.
  std::string description;
  // Holds the date in the form "2026-11-21".
  std::string date;
  int n_threads = 1;
  ReportCommands commands;
  QualityResult quality;
  // The last result belongs to the longest context.
  std::vector<LayerResult> layers;
  LimitResult limits;
  GreedyResult greedy;
  BenchOptions speed_options;
  std::vector<BenchRow> speed;
  std::vector<int> memory_contexts;  // tokens, in ascending order
  std::vector<MemoryRow> memory;
};

// Returns the document {"schema":"kvant.report/2",..} that docs/reference/json.md describes.
nlohmann::ordered_json report_to_json(const ReportFigures& figures);

}  // namespace kvant
