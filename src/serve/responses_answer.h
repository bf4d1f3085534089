// Writes responses in the format of OpenAI's Responses API, whole or as the events of a stream. The events
// carry numbers and the items' final forms, which clients check.
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
  // A response repeats parts of the request `body`. If tool_format is null, the completion is plain text.
  // `tokenizer` must outlive the object.
  ResponsesAnswer(const nlohmann::ordered_json& body, std::string model,
                  const std::shared_ptr<const ToolFormat>& tool_format, const Tokenizer& tokenizer);

  // start_events(), part_events(), end_events() and failure_event() return a stream's events, with names and
  // numbers. The events come before the first part, with a part (possibly none), after the last part, and
  // after a failure. For a whole response, the caller calls the same functions and ignores the events.
  std::string start_events();
  std::string part_events(const AnswerPart& part);
  std::string end_events(const TokenUsage& usage);
  std::string failure_event(const ApiError& error);

  // Returns the whole response. Call whole() after end_events().
  const nlohmann::ordered_json& whole() const { return response_; }

 private:
  using Json = nlohmann::ordered_json;
  static constexpr int kNone = -3, kThought = -2, kText = -1;  // other values are numbers of tool calls

  std::string event(const char* type, const Json& data);
  Json place() const;
  Json content_part() const;
  std::string open(int kind, Json item);
  std::string add(const char* type, const std::string& more);
  std::string close(const char* status);

  const Tokenizer& tokenizer_;
  std::unique_ptr<ToolAnswer> reader_;  // null if the completion is plain text
  Json response_;
  Json item_;  // the output item that is being written
  std::string text_;
  int kind_ = kNone;
  int n_events_ = 0;
  int thought_tokens_ = 0;
  GenerationEnd end_ = GenerationEnd::none;
};

}  // namespace kvant
