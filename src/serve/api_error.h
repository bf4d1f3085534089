// What a client gets instead of an answer, in the format of the OpenAI API, which is made to be that of
// Anthropic's as well.
#pragma once

#include <span>
#include <string>

#include "serve/server_info.h"

namespace kvant {

struct ApiError {
  int status = 400;            // of HTTP
  std::string message;         // one sentence
  std::string parameter = {};  // of the request that is wrong; empty: none
  int retry_seconds = 0;       // > 0: when to ask again

  // The body: {"type": "error", "error": {"message", "type", "param", "code"}}.
  std::string body() const;
};

// A request for another model than those that are served.
ApiError unknown_model(const std::string& name, std::span<const ServerInfo> served);

}  // namespace kvant
