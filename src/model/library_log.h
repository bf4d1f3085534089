// What llama.cpp and ggml print. Their log is one for the whole process.
#pragma once

namespace kvant {

// Verbose: their messages go to the standard error stream. Otherwise they are dropped: what a user needs
// to know, kvant says itself. Everything in this room starts with them dropped.
void set_library_log(bool verbose);

// Drops the messages unless set_library_log was called before.
void quiet_library_log();

}  // namespace kvant
