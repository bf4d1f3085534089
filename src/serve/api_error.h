// Errors that a client gets instead of a completion, in the format of the OpenAI API.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "serve/server_info.h"

namespace kvant {

// OpenAI's clients tell errors apart by these codes.
inline constexpr const char* kInvalidValue = "invalid_value";
inline constexpr const char* kInvalidType = "invalid_type";
inline constexpr const char* kMissingParameter = "missing_required_parameter";
inline constexpr const char* kUnsupportedParameter = "unsupported_parameter";
inline constexpr const char* kContextLengthExceeded = "context_length_exceeded";
inline constexpr const char* kModelNotFound = "model_not_found";

// A prompt that does not fit into the context. Lengths are in tokens.
struct ContextOverflow {
  int prompt = 0;
  int context = 0;
  std::string parameter = "messages";  // the parameter that is too long
};

struct ApiError {
  int status = 400;                              // HTTP status
  std::string message;                           // one sentence
  std::string parameter = {};                    // the wrong parameter of the request; empty: none
  std::string code = {};                         // empty: the status determines it
  int retry_seconds = 0;                         // > 0: when the client should ask again
  std::optional<ContextOverflow> overflow = {};  // set if the prompt does not fit

  // Returns the body: {"type": "error", "error": {"message", "type", "param", "code"}}.
  std::string body() const;
};

// Makes the error for a model that is not served.
ApiError unknown_model(const std::string& name, std::span<const ServerInfo> served);
// Makes the error for a prompt that is too long. Its words are those by which clients recognize that they
// should shorten the conversation.
ApiError context_overflow(const ContextOverflow& overflow);

}  // namespace kvant
