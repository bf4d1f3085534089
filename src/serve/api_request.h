// Reads requests of the OpenAI API from JSON. Mistakes are refused; parameter_rule.h says what happens to
// parameters that kvant does not have.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "chat/chat_template.h"
#include "model/tokenizer.h"
#include "serve/api_error.h"
#include "serve/request.h"

namespace kvant {

class ServerLog;

inline constexpr std::size_t kMaxStops = 16;  // stop texts in a request

// Describes a request to an endpoint that generates.
struct ApiRequest {
  bool is_chat = false;
  const char* parameter = "prompt";        // the parameter that holds the prompt, for errors
  std::vector<GenerationRequest> prompts;  // one request per prompt of a list; all have the same options
  bool stream = false;
  bool include_usage = false;  // a stream's last chunk reports the usage
  bool wants_probabilities = false;
  std::shared_ptr<const ToolFormat>
      tool_format;    // reads tool calls and thoughts from completions; null: completions are plain text
  std::string model;  // the name that the client gave; empty: any
  std::vector<std::string> stops;  // the client's stop texts, for the Messages API
  bool base64 = false;             // embeddings are written in base64
};

// Says what a server accepts.
struct ApiLimits {
  int n_vocab = 0, n_embd = 0;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none
  std::size_t max_prompts = 2048;               // prompts in a list
  ServerLog* log = nullptr;                     // receives hints; null: none
};

using ParsedRequest = std::variant<ApiRequest, ApiError>;

// Reads POST /v1/chat/completions. The messages go into the model's chat template.
ParsedRequest parse_chat_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                 const ApiLimits& limits);
// Reads POST /v1/completions. The prompts are texts or tokens, which stay as they are.
ParsedRequest parse_completion_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                       const ApiLimits& limits);

}  // namespace kvant
