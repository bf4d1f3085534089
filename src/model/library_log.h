// Controls what llama.cpp and ggml print. The whole process shares one log.
#pragma once

namespace kvant {

// With `verbose`, the libraries' messages go to stderr. Without `verbose`, and by default, the messages are
// dropped, because kvant itself reports what users need to know.
void set_library_log(bool verbose);

// Drops the messages unless set_library_log() was called before.
void quiet_library_log();

}  // namespace kvant
