// Broken invariants (bugs) end the process with a message; errors that a user can cause are `Result`s.
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
