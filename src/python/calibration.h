// Calibrates models that Python runs, and gives Python's caches the constants of calibration files.
#pragma once

#include <nanobind/nanobind.h>

namespace kvant {

void bind_calibration(nanobind::module_& m);

}  // namespace kvant
