// CacheView: what a server's cache holds at one moment, sequence by sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "serve/scheduler.h"

namespace kvant {

struct CacheView {
  double seconds = 0;  // of a clock that never goes back: rates are differences of counters by it
  SchedulerStatus status;
  std::vector<ServedSequence> sequences;
  std::int64_t page_bytes = 0;  // of pages in use, shared ones once
};

// Between steps.
CacheView view_cache(const Scheduler& scheduler);

}  // namespace kvant
