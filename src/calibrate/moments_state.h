// Saves the query moments that a calibration has collected so far. Gradients take most of the time of a
// calibration, so an interrupted calibration resumes after the last complete context.
#pragma once

#include <cstdint>
#include <string>

#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/query_metric.h"

namespace kvant {

// Writes the moments. `identity` is a hash of the work to which they belong. Returns the errors of
// write_whole_file().
Status write_moments(const ReadContexts& read, std::uint64_t identity, const std::string& path);
// Reads the moments. The result is empty if there is no file. Returns the errors of open_state().
Result<ReadContexts> read_moments(const std::string& path, std::uint64_t identity, const Geometry& geometry);

}  // namespace kvant
