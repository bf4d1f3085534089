// Describes the errors that a client gets instead of a completion. body() writes an error in the format of
// the OpenAI API.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "serve/server_info.h"

namespace kvant {

// OpenAI's client libraries tell errors apart by these codes.
inline constexpr const char* kInvalidValue = "invalid_value";
inline constexpr const char* kInvalidType = "invalid_type";
inline constexpr const char* kMissingParameter = "missing_required_parameter";
inline constexpr const char* kUnsupportedParameter = "unsupported_parameter";
inline constexpr const char* kContextLengthExceeded = "context_length_exceeded";
inline constexpr const char* kModelNotFound = "model_not_found";

// ContextOverflow describes a prompt that does not fit into the model's context. Lengths are in tokens.
struct ContextOverflow {
  int prompt = 0;
  int context = 0;
  std::string parameter = "messages";  // this parameter holds the prompt
};

struct ApiError {
  int status = 400;
  std::string message;                           // the message is one sentence
  std::string parameter = {};                    // the request's wrong parameter; empty if no single
                                                 // parameter is wrong
  std::string code = {};                         // if the code is empty, the status determines it
  int retry_seconds = 0;                         // if not 0, the client should retry after this time
  std::optional<ContextOverflow> overflow = {};  // the value is set if the prompt does not fit into the
                                                 // context

  // Returns the body of the HTTP response: {"type": "error", "error": {"message", "type", "param", "code"}}.
  std::string body() const;
};

// Returns the error for a model name that the server does not serve. The error lists the names in `served`.
ApiError unknown_model(const std::string& name, std::span<const ServerInfo> served);
// Returns the error for a prompt that is too long. Client programs shorten a conversation if the error
// message has certain words, so the message contains these words.
ApiError context_overflow(const ContextOverflow& overflow);

}  // namespace kvant
