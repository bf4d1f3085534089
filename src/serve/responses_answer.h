// Responses in the format of OpenAI's Responses API: whole, or as the events of a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer.h"
#include "serve/answer_stream.h"
#include "serve/api_error.h"
#include "serve/tool_answer.h"

namespace kvant {

class ResponsesAnswer {
 public:
  // body: the request's, which a response repeats in part. tool_format: null: the answer is text. tokenizer
  // outlives it.
  ResponsesAnswer(const nlohmann::ordered_json& body, std::string model,
                  const std::shared_ptr<const ToolFormat>& tool_format, const Tokenizer& tokenizer);

  // Events of a stream, each with its name and number: before the first part, for a part (which may be none),
  // after the last, or where the answer has failed. For a whole response they are left unread.
  std::string start_events();
  std::string part_events(const AnswerPart& part);
  std::string end_events(const TokenUsage& usage);
  std::string failure_event(const ApiError& error);

  // After end_events().
  const nlohmann::ordered_json& whole() const { return response_; }

 private:
  using Json = nlohmann::ordered_json;
  static constexpr int kNone = -3, kThought = -2, kText = -1;  // else the number of a tool call

  std::string event(const char* type, const Json& data);
  Json place() const;
  Json content_part() const;
  std::string open(int kind, Json item);
  std::string add(const char* type, const std::string& more);
  std::string close(const char* status);

  const Tokenizer& tokenizer_;
  std::unique_ptr<ToolAnswer> reader_;  // null: the text is the answer
  Json response_;
  Json item_;         // that goes on
  std::string text_;  // of that item, so far
  int kind_ = kNone;  // of that item
  int n_events_ = 0;
  int thought_tokens_ = 0;
  GenerationEnd end_ = GenerationEnd::none;
};

}  // namespace kvant
