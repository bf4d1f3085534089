// GET /metrics: the text format of Prometheus, version 0.0.4.
#pragma once

#include <string>

#include "serve/scheduler.h"
#include "serve/server_info.h"

namespace kvant {

std::string metrics_text(const ServerInfo& info, const SchedulerOptions& options,
                         const SchedulerStatus& status);

}  // namespace kvant
