// Writes errors in the format of Anthropic's Messages API. Clients of that API recognize errors by their
// type.
#pragma once

#include <string>

#include "serve/api_error.h"

namespace kvant {

// Returns the HTTP status of an error. Anthropic's API has a status of its own for an overloaded server.
int messages_status(const ApiError& error);
// Returns the body: {"type": "error", "error": {"type", "message"}, "request_id"}. Client programs shorten a
// conversation when the message has certain words. The message for a prompt that is too long has those words.
std::string messages_error(const ApiError& error, const std::string& request_id);
// Returns the event with which a stream ends if the completion fails after the stream has begun.
std::string messages_error_event(const ApiError& error, const std::string& request_id);

}  // namespace kvant
