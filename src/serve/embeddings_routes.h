// Routes POST /v1/embeddings, which turns texts into vectors. The vector is the mean of a text's hidden
// states, which the generating model computes.
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

// Reads the body of POST /v1/embeddings. Every input becomes a separate prompt.
ParsedRequest parse_embeddings_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                       const ApiLimits& limits = {});

// Encodes the bytes of the floats in base64 (RFC 4648), which OpenAI's client libraries decode.
std::string base64_of(std::span<const float> values);

// Adds the route for embeddings to the server. All arguments except the object `limits` must outlive the
// server, and so must the objects to which `limits` points.
void add_embeddings_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                          const ApiLimits& limits, std::span<const ServerInfo> served);

}  // namespace kvant
