// Saves the query moments that a calibration has read to a file.
#pragma once

#include <cstdint>
#include <string>

#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/query_metric.h"

namespace kvant {

// identity: hash of the work that they belong to. Errors: see write_whole_file.
Status write_moments(const ReadContexts& read, std::uint64_t identity, const std::string& path);
// Returns an empty result if there is no file. Errors: see open_state().
Result<ReadContexts> read_moments(const std::string& path, std::uint64_t identity, const Geometry& geometry);

}  // namespace kvant
