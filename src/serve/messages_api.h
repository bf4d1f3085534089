// Anthropic's Messages API (POST /v1/messages): requests from JSON, answers and errors in its format.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer.h"
#include "serve/answer_stream.h"
#include "serve/api_request.h"

namespace kvant {

// The messages in the model's chat template. What is wrong or not supported is refused, never ignored;
// `cache_control` and `metadata` are taken: prompts that begin alike are read once anyway.
ParsedRequest parse_messages_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer);

// The body of an error: {"type": "error", "error": {"type", "message"}}.
std::string messages_error(const ApiError& error);

// An answer, whole or as the events of a stream. Parts are added in order.
class MessagesResponse {
 public:
  // n_prompt: tokens of the prompt.
  MessagesResponse(std::string model, int n_prompt);

  void add(const AnswerPart& part);
  // After the last part.
  nlohmann::ordered_json whole(const TokenUsage& usage) const;

  // Events of a stream, each with its name: before the first part, for a part (which may be none), after the
  // last.
  std::string start_events() const;
  std::string part_event(const AnswerPart& part) const;
  std::string end_events(const TokenUsage& usage) const;

 private:
  nlohmann::ordered_json stop_json() const;

  std::string model_, id_;
  int n_prompt_;
  std::string text_;
  AnswerPart last_;
};

// An event that tells of a failure half-way.
std::string messages_error_event(const ApiError& error);

}  // namespace kvant
