// Routes /v1/chat/completions and /v1/completions of the OpenAI API. The routes parse requests and format
// completions. All else is in answer_route.h.
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

// Adds the routes for completions to the server. All arguments except the object `limits` must outlive the
// server, and so must the objects to which `limits` points.
void add_completion_routes(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                           const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
