// Controls what llama.cpp and ggml print. The whole process shares one log.
#pragma once

namespace kvant {

// Sets where the libraries' messages go. If `verbose` is true, they go to stderr. Otherwise, and by default,
// the messages are dropped, because kvant itself reports what users need to know.
void set_library_log(bool verbose);

// Drops the messages unless set_library_log() was called before.
void quiet_library_log();

}  // namespace kvant
