// Tests only: kvant/kvant.h on the host's memory, in plain code: pages are canonical, unquantized rows lie
// one after another, attention is in double precision.
#pragma once

#include "cache/page_device.h"

namespace kvant::testing {

PageLibrary host_library();

}  // namespace kvant::testing
