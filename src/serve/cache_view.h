// CacheView is a snapshot of a server's cache with all its sequences. The snapshot is taken between two
// steps, so all its figures belong together.
#pragma once

#include <cstdint>
#include <vector>

#include "serve/scheduler.h"

namespace kvant {

struct CacheView {
  double seconds = 0;  // the time of a monotonic clock; rates are differences of counters by this time
  SchedulerStatus status;
  std::vector<ServedSequence> sequences;
  std::int64_t page_bytes = 0;  // the bytes of pages in use, where a shared page counts once
};

// Call view_cache() only between steps, when the cache does not change.
CacheView view_cache(const Scheduler& scheduler);

}  // namespace kvant
