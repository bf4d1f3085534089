#include "base/warn.h"

#include <fmt/format.h>

#include <cstdio>

namespace kvant {

void warn(const std::string& message) {
  fmt::print(stderr, "kvant: warning: {}\n", message);
}

}  // namespace kvant
