#include "base/warn.h"

#include <fmt/format.h>

#include <cstdio>

namespace kvant {

void warn(const std::string& message) {
  // fmt::print would throw when nobody can read the output, as on a closed terminal.
  std::fputs(fmt::format("kvant: warning: {}\n", message).c_str(), stderr);
}

}  // namespace kvant
