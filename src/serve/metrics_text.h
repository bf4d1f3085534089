// Writes the metrics of GET /metrics in the text format of Prometheus, version 0.0.4. The values come from
// the schedulers' counters, so a scrape takes hardly any time.
#pragma once

#include <span>
#include <string>

#include "serve/scheduler.h"
#include "serve/server_info.h"

namespace kvant {

struct RecipeMetrics {
  const ServerInfo& info;
  const SchedulerOptions& options;
  SchedulerStatus status;
};

// Returns the metrics as a text for Prometheus. If there are several recipes, each value has a label
// `recipe`.
std::string metrics_text(std::span<const RecipeMetrics> recipes);

}  // namespace kvant
