// Reads requests of the OpenAI API from JSON. A mistake becomes an error for the client. parameter_rule.h
// decides what happens to parameters that kvant does not have.
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

inline constexpr std::size_t kMaxStops = 16;  // a request may have this many stop texts

// ApiRequest is a parsed request to one of the endpoints that generate.
struct ApiRequest {
  bool is_chat = false;
  const char* parameter = "prompt";        // the name of the parameter that holds the prompt, for error
                                           // messages
  std::vector<GenerationRequest> prompts;  // one request for each prompt of a list; all have the same options
  bool stream = false;
  bool include_usage = false;  // the stream's last chunk reports the token usage
  bool wants_probabilities = false;
  // The format reads tool calls and thoughts from completions. If null, completions are plain text.
  std::shared_ptr<const ToolFormat> tool_format;
  std::string model;               // the model's name that the client gave; an empty name means any model
  std::vector<std::string> stops;  // the client's stop texts, which the Messages API reports back
  bool base64 = false;             // embeddings are encoded in base64
};

// ApiLimits says what a server accepts.
struct ApiLimits {
  int n_vocab = 0, n_embd = 0;
  const ChatTemplate* chat_template = nullptr;  // null if the model has no template
  std::size_t max_prompts = 2048;               // a list may have this many prompts
  ServerLog* log = nullptr;                     // the log receives hints; null if there is no log
};

using ParsedRequest = std::variant<ApiRequest, ApiError>;

// Reads the body of POST /v1/chat/completions. The model's chat template turns the messages into a prompt.
ParsedRequest parse_chat_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                 const ApiLimits& limits);
// Reads the body of POST /v1/completions. The prompts are texts or tokens and go to the model without a
// template.
ParsedRequest parse_completion_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                       const ApiLimits& limits);

}  // namespace kvant
