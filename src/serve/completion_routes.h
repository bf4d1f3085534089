// Routes /v1/chat/completions and /v1/completions of the OpenAI API. The routes parse requests and format
// completions; answer_route.h does the rest.
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

// All arguments except the object `limits` must outlive the server; whatever `limits` points to must, too.
void add_completion_routes(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                           const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
