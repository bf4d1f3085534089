#include "base/warn.h"

#include <fmt/format.h>

#include <cstdio>

namespace kvant {

void warn(const std::string& message) {
  // Not fmt::print: it throws where nobody reads, such as at a terminal that is gone.
  std::fputs(fmt::format("kvant: warning: {}\n", message).c_str(), stderr);
}

}  // namespace kvant
