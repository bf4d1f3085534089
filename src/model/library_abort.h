// Catches failed assertions of llama.cpp and ggml. A failed assertion normally ends the process, and a
// damaged file can be the cause.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace kvant {

// Runs `body`, which may call the libraries only on this thread. Returns the message of a failed assertion or
// exception, or nothing if there was none. Calls must not be nested, and a second thread waits.
std::optional<std::string> catch_library_abort(const std::function<void()>& body);

}  // namespace kvant
