// Routes POST /v1/responses of OpenAI's Responses API. The route parses requests and formats completions. All
// else is in answer_route.h.
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

// Adds the route for the Responses API to the server. All arguments except the object `limits` must outlive
// the server, and so must the objects to which `limits` points.
void add_responses_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                         const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
