// Writes the JSON of GET /cache, which says how the cache is stored and which sequences it holds. The web
// page and users' programs read the JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "serve/cache_view.h"
#include "serve/server_info.h"

namespace kvant {

// Returns the document that docs/reference/json.md describes under the schema name kvant.cache/1.
nlohmann::ordered_json cache_json(const ServerInfo& info, const SchedulerOptions& options,
                                  const CacheView& view);

}  // namespace kvant
