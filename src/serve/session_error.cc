#include "serve/session_error.h"

namespace kvant {

SessionError unknown_session(const std::string& name) {
  return {SessionError::Kind::missing, fmt::format("there is no session '{}'", name)};
}

SessionError session_in_use(const std::string& name, const char* how) {
  return {SessionError::Kind::in_use, fmt::format("the session '{}' is {}: try again later", name, how)};
}

SessionError unusable_session(const Error& why) {
  return {why.is_shortage ? SessionError::Kind::no_memory : SessionError::Kind::unusable, why.message};
}

}  // namespace kvant
