// SessionError says why a command or request cannot use a session. Each kind of error becomes an HTTP status.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace kvant {

struct SessionError {
  enum class Kind : std::uint8_t {
    missing,      // the session does not exist
    in_use,       // the client should try again
    exists,       // another session has that name
    unusable,     // the session's file is damaged, or belongs to another model, recipe or version
    no_memory,    // memory is too short now
    not_written,  // the file could not be written, for example because the disk is full
  };
  Kind kind = Kind::missing;
  std::string message;
};
SessionError unknown_session(const std::string& name);
SessionError session_in_use(const std::string& name, const char* how);  // `how` is "being saved", for example
SessionError unusable_session(const Error& why);  // for an unusable file, or for memory that is too short for
                                                  // the file

}  // namespace kvant
