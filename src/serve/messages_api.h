// Reads requests of Anthropic's Messages API (POST /v1/messages) from JSON, and writes messages in the format
// of that API. The API's blocks and events differ from OpenAI's. Prompts, tools and formats share the code of
// all APIs.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "serve/answer_stream.h"
#include "serve/api_request.h"

namespace kvant {

// Reads a request and puts the messages into the model's chat template. A mistake becomes an error for the
// client. parameter_rule.h decides what happens to parameters that kvant does not have.
ParsedRequest parse_messages_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                     const ApiLimits& limits = {});

// MessagesResponse writes one completion, either whole or as the events of a stream. The caller adds parts in
// order.
class MessagesResponse {
 public:
  // If tool_format is null, the completion is plain text. `stops` are the stop texts that the client gave.
  explicit MessagesResponse(std::string model, std::shared_ptr<const ToolFormat> tool_format = nullptr,
                            std::vector<std::string> stops = {});

  void add(const AnswerPart& part);
  // Returns the whole message. Call whole() after the last part.
  nlohmann::ordered_json whole(const TokenUsage& usage) const;

  // For a stream, the caller calls start_events(), part_events() and end_events() in place of add().
  // start_events() returns the events before the first part, part_events() returns the events for a part
  // (possibly none), and end_events() returns the events after the last part. start_events() takes the
  // prompt's usage.
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
                       // Other values of a block are the numbers of tool calls.
      kTextBlock = -1;

  std::string model_, id_;
  std::shared_ptr<const ToolFormat> tool_format_;
  std::unique_ptr<ToolAnswer> reader_;  // null if the completion is plain text
  std::vector<std::string> stops_;      // these stop texts are reported; others belong to the chat template,
                                        // which the client does not know
  std::string thought_, text_;
  std::vector<ToolCallPart> calls_;  // complete calls
  AnswerPart last_;
  int n_blocks_ = 0;
  int open_block_ = kNoBlock;  // the block that is being written
};

}  // namespace kvant
