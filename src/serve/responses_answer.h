// Writes responses in the format of OpenAI's Responses API, whole or as the events of a stream.
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
  // `body` is the request, which a response repeats in part. With a null tool_format, the completion is plain
  // text. `tokenizer` must outlive the object.
  ResponsesAnswer(const nlohmann::ordered_json& body, std::string model,
                  const std::shared_ptr<const ToolFormat>& tool_format, const Tokenizer& tokenizer);

  // Return the events of a stream, with names and numbers: before the first part, for a part (possibly no
  // event), after the last, or after a failure. For a whole response, ignore them.
  std::string start_events();
  std::string part_events(const AnswerPart& part);
  std::string end_events(const TokenUsage& usage);
  std::string failure_event(const ApiError& error);

  // Call it after end_events().
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
  std::unique_ptr<ToolAnswer> reader_;  // null: the completion is plain text
  Json response_;
  Json item_;         // the item that is being written
  std::string text_;  // text of that item so far
  int kind_ = kNone;  // kind of that item
  int n_events_ = 0;
  int thought_tokens_ = 0;
  GenerationEnd end_ = GenerationEnd::none;
};

}  // namespace kvant
