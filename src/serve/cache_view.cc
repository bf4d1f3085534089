#include "serve/cache_view.h"

#include <chrono>

namespace kvant {

CacheView view_cache(const Scheduler& scheduler) {
  using std::chrono::steady_clock;
  return {.seconds = std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count(),
          .status = scheduler.status(),
          .sequences = scheduler.sequences(),
          .page_bytes = scheduler.cache().page_bytes_in_use()};
}

}  // namespace kvant
