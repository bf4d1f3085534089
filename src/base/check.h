// KVANT_CHECK ends the process with a message if an invariant is broken, which is a bug. Errors that a user
// can cause are `Result`s.
#pragma once

#include <cstdio>
#include <cstdlib>

#define KVANT_CHECK(condition, message)                                                                \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      std::fprintf(stderr, "kvant: bug at %s:%d: %s (%s)\n", __FILE__, __LINE__, message, #condition); \
      std::abort();                                                                                    \
    }                                                                                                  \
  } while (false)
