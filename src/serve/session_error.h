// SessionError: why something can't be done with a session.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace kvant {

struct SessionError {
  enum class Kind : std::uint8_t {
    missing,      // there is none
    in_use,       // come again
    exists,       // one of that name does
    unusable,     // its file is damaged, or belongs to something else
    no_memory,    // for it now
    not_written,  // the disk is full, for example
  };
  Kind kind = Kind::missing;
  std::string message;
};
SessionError unknown_session(const std::string& name);
SessionError session_in_use(const std::string& name, const char* how);  // how: "being saved"
SessionError unusable_session(const Error& why);                        // its file, or for want of memory

}  // namespace kvant
