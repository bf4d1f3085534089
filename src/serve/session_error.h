// SessionError says why something cannot be done with a session.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace kvant {

struct SessionError {
  enum class Kind : std::uint8_t {
    missing,      // it does not exist
    in_use,       // the client should try again
    exists,       // another one has that name
    unusable,     // its file is damaged, or belongs to something else
    no_memory,    // memory is too short now
    not_written,  // for example, the disk is full
  };
  Kind kind = Kind::missing;
  std::string message;
};
SessionError unknown_session(const std::string& name);
SessionError session_in_use(const std::string& name, const char* how);  // how: "being saved"
SessionError unusable_session(const Error& why);  // because of its file, or of too little memory

}  // namespace kvant
