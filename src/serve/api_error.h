// What a client gets instead of a completion, in the format of the OpenAI API.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "serve/server_info.h"

namespace kvant {

// Codes by which OpenAI's clients tell errors apart.
inline constexpr const char* kInvalidValue = "invalid_value";
inline constexpr const char* kInvalidType = "invalid_type";
inline constexpr const char* kMissingParameter = "missing_required_parameter";
inline constexpr const char* kUnsupportedParameter = "unsupported_parameter";
inline constexpr const char* kContextLengthExceeded = "context_length_exceeded";
inline constexpr const char* kModelNotFound = "model_not_found";

// A prompt that has no room in the context, in tokens.
struct ContextOverflow {
  int prompt = 0;
  int context = 0;
  std::string parameter = "messages";  // that is too long
};

struct ApiError {
  int status = 400;                              // of HTTP
  std::string message;                           // one sentence
  std::string parameter = {};                    // of the request that is wrong; empty: none
  std::string code = {};                         // empty: the status says it
  int retry_seconds = 0;                         // > 0: when to ask again
  std::optional<ContextOverflow> overflow = {};  // where that is what is wrong

  // The body: {"type": "error", "error": {"message", "type", "param", "code"}}.
  std::string body() const;
};

// A request for another model than those that are served.
ApiError unknown_model(const std::string& name, std::span<const ServerInfo> served);
// A prompt that is too long. The sentence has the words by which clients know that they should shorten the
// conversation.
ApiError context_overflow(const ContextOverflow& overflow);

}  // namespace kvant
