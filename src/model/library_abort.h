// llama.cpp and ggml end the process when an assertion fails, and a damaged file can make theirs fail.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace kvant {

// Runs `body`, which calls into them on this thread only, and returns what the failed assertion or the
// exception said, or nothing when there was none. Not to be nested, nor run on two threads at a time: the
// second waits.
std::optional<std::string> catch_library_abort(const std::function<void()>& body);

}  // namespace kvant
