// Writes messages for the user to the standard error stream. If the stream is closed or its disk is full, the
// messages are lost and the run continues. fmt::print() would throw an exception then.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace kvant {

// Writes a text as it is.
void write_message(const std::string& text);

// Formats a text and writes it.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  write_message(fmt::format(format, std::forward<Args>(args)...));
}

// Writes a warning, which tells a user what to know about a run that continues. All warnings are one line of
// one form.
void warn(const std::string& message);

}  // namespace kvant
