// POST /v1/embeddings: texts as vectors.
#pragma once

#include <span>
#include <string>

#include "model/tokenizer.h"
#include "serve/api_request.h"
#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace httplib {
class Server;
}

namespace kvant {

// A prompt for each input.
ParsedRequest parse_embeddings_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                       const ApiLimits& limits = {});

// The floats as they lie in memory, in base64 (RFC 4648), as clients of OpenAI read them.
std::string base64_of(std::span<const float> values);

// All outlive the server, and so does what `limits` points to.
void add_embeddings_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                          const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
