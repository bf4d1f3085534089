// CacheView shows what a server's cache holds at one moment, sequence by sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "serve/scheduler.h"

namespace kvant {

struct CacheView {
  double seconds = 0;  // time of a monotonic clock, for rates of counters
  SchedulerStatus status;
  std::vector<ServedSequence> sequences;
  std::int64_t page_bytes = 0;  // bytes of pages in use; shared pages count once
};

// Call it between steps.
CacheView view_cache(const Scheduler& scheduler);

}  // namespace kvant
