// Anthropic's Messages API (POST /v1/messages): reads requests from JSON and writes messages.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "serve/answer_stream.h"
#include "serve/api_request.h"

namespace kvant {

// Puts the messages into the model's chat template. Mistakes are refused; parameter_rule.h says what happens
// to parameters that kvant does not have.
ParsedRequest parse_messages_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                     const ApiLimits& limits = {});

// Writes a completion, whole or as the events of a stream. Parts are added in order.
class MessagesResponse {
 public:
  // With a null tool_format, the completion is plain text. `stops` are the client's.
  explicit MessagesResponse(std::string model, std::shared_ptr<const ToolFormat> tool_format = nullptr,
                            std::vector<std::string> stops = {});

  void add(const AnswerPart& part);
  // Call it after the last part.
  nlohmann::ordered_json whole(const TokenUsage& usage) const;

  // Return the events of a stream, with their names: before the first part, for a part (possibly no event),
  // and after the last. They replace add(). `usage` is the prompt's.
  std::string start_events(const TokenUsage& usage);
  std::string part_events(const AnswerPart& part);
  std::string end_events(const TokenUsage& usage);

 private:
  AnswerDelta read(const AnswerPart& part);
  std::string open_block(nlohmann::ordered_json block, int call);
  std::string close_block();
  std::string block_delta(nlohmann::ordered_json delta) const;
  nlohmann::ordered_json stop_json() const;

  static constexpr int kNoBlock = -3, kThoughtBlock = -2,
                       kTextBlock = -1;  // other values are numbers of tool calls

  std::string model_, id_;
  std::shared_ptr<const ToolFormat> tool_format_;
  std::unique_ptr<ToolAnswer> reader_;  // null: the completion is plain text
  std::vector<std::string> stops_;      // the client did not ask for a template's own stop texts
  std::string thought_, text_;
  std::vector<ToolCallPart> calls_;  // complete calls
  AnswerPart last_;
  int n_blocks_ = 0;           // blocks of the stream so far
  int open_block_ = kNoBlock;  // the block that is being written
};

}  // namespace kvant
