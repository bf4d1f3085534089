// Routes POST /infill, in the format of llama.cpp's server. A request for the middle of a text becomes a
// request for a completion, so it shares the code of /v1/completions.
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

// Turns a request of POST /infill into a request for a completion whose prompt is tokens. Parameters that
// only shape an editor's suggestion (`t_max_predict_ms`, `samplers`) are hints.
ParsedRequest parse_infill_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                   const ApiLimits& limits = {});

// Adds the route POST /infill to the server. All arguments except the object `limits` must outlive the
// server, and so must the objects to which `limits` points.
void add_infill_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                      const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
