// Writes the JSON of GET /cache: how the cache is stored, and what it holds.
#pragma once

#include <nlohmann/json.hpp>

#include "serve/cache_view.h"
#include "serve/server_info.h"

namespace kvant {

// docs/reference/json.md describes the fields (kvant.cache/1).
nlohmann::ordered_json cache_json(const ServerInfo& info, const SchedulerOptions& options,
                                  const CacheView& view);

}  // namespace kvant
