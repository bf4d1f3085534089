#include "base/warn.h"

#include <cstdio>

namespace kvant {

void write_message(const std::string& text) {
  std::fputs(text.c_str(), stderr);
}

void warn(const std::string& message) {
  say("kvant: warning: {}\n", message);
}

}  // namespace kvant
