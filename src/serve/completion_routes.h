// Routes /v1/chat/completions and /v1/completions of the OpenAI API.
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

// Everything except `limits` itself must outlive the server.
void add_completion_routes(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                           const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
