// Errors in the format of Anthropic's Messages API.
#pragma once

#include <string>

#include "serve/api_error.h"

namespace kvant {

// The status of HTTP, which is Anthropic's own for a server that has too much to do.
int messages_status(const ApiError& error);
// The body: {"type": "error", "error": {"type", "message"}, "request_id"}. A prompt that is too long is named
// by the words that clients look for before they shorten a conversation.
std::string messages_error(const ApiError& error, const std::string& request_id);
// An event of a stream that has failed half-way.
std::string messages_error_event(const ApiError& error, const std::string& request_id);

}  // namespace kvant
