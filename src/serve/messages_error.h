// Writes errors in the format of Anthropic's Messages API.
#pragma once

#include <string>

#include "serve/api_error.h"

namespace kvant {

// Returns the HTTP status. Anthropic has its own for a server that is overloaded.
int messages_status(const ApiError& error);
// Returns the body: {"type": "error", "error": {"type", "message"}, "request_id"}. For a prompt that is too
// long, it has the words at which clients shorten a conversation.
std::string messages_error(const ApiError& error, const std::string& request_id);
// Returns the event of a stream that failed after it had begun.
std::string messages_error_event(const ApiError& error, const std::string& request_id);

}  // namespace kvant
