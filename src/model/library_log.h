// Controls what llama.cpp and ggml print. The whole process shares one log.
#pragma once

namespace kvant {

// With `verbose`, their messages go to stderr. Otherwise they are dropped, because kvant itself says what
// users need to know. By default they are dropped.
void set_library_log(bool verbose);

// Drops the messages, unless set_library_log was called before.
void quiet_library_log();

}  // namespace kvant
