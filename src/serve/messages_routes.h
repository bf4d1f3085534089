// Routes POST /v1/messages and /v1/messages/count_tokens of Anthropic's Messages API. Requests for
// "claude-..." models go to the served model, because client programs contain such names.
#pragma once

#include <span>

#include "model/tokenizer.h"
#include "serve/api_request.h"
#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace httplib {
class Server;
}

namespace kvant {

// Adds the route for the Messages API to the server. All arguments except the object `limits` must outlive
// the server, and so must the objects to which `limits` points.
void add_messages_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                        const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
