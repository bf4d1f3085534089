// Requests of the OpenAI API, from JSON. What is wrong is refused; parameters that kvant does not have follow
// one rule (parameter_rule.h).
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

inline constexpr std::size_t kMaxStops = 16;  // texts that end an answer, of a request

// What an endpoint that generates was asked for.
struct ApiRequest {
  bool is_chat = false;
  const char* parameter = "prompt";        // that the prompt is read from, for errors
  std::vector<GenerationRequest> prompts;  // one; several for a list of prompts, all with the same options
  bool stream = false;
  bool include_usage = false;  // in a last chunk of a stream
  bool wants_probabilities = false;
  std::shared_ptr<const ToolFormat> tool_format;  // that answers are read by; null: they are text
  std::string model;                              // as named by the client; empty: any
  std::vector<std::string> stops;                 // the client's, of the Messages API
  bool base64 = false;                            // how embeddings are written
};

// What a server takes.
struct ApiLimits {
  int n_vocab = 0, n_embd = 0;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none
  std::size_t max_prompts = 2048;               // of a list
  ServerLog* log = nullptr;                     // for hints; null: none
};

using ParsedRequest = std::variant<ApiRequest, ApiError>;

// POST /v1/chat/completions: the messages in the model's chat template.
ParsedRequest parse_chat_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                 const ApiLimits& limits);
// POST /v1/completions: texts or tokens, as they are.
ParsedRequest parse_completion_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                       const ApiLimits& limits);

}  // namespace kvant
