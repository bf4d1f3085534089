// POST /infill, as llama.cpp's server has it.
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

// A request for the middle of a text, which is one to /v1/completions with a prompt of tokens. What editors
// send to shape a suggestion and kvant does not have (`t_max_predict_ms`, `samplers`) is a hint.
ParsedRequest parse_infill_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                   const ApiLimits& limits = {});

// All outlive the server, and so does what `limits` points to.
void add_infill_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                      const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
