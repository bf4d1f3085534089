// Calibration of models that Python runs, and constants of files for its caches.
#pragma once

#include <nanobind/nanobind.h>

namespace kvant {

void bind_calibration(nanobind::module_& m);

}  // namespace kvant
