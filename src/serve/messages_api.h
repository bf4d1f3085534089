// Anthropic's Messages API (POST /v1/messages): requests from JSON, messages in its format.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "serve/answer_stream.h"
#include "serve/api_request.h"

namespace kvant {

// The messages in the model's chat template. What is wrong is refused; parameters that kvant does not have
// follow one rule (parameter_rule.h).
ParsedRequest parse_messages_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                     const ApiLimits& limits = {});

// An answer, whole or as the events of a stream. Parts are added in order.
class MessagesResponse {
 public:
  // tool_format: null: the answer is text. stops: the client's.
  explicit MessagesResponse(std::string model, std::shared_ptr<const ToolFormat> tool_format = nullptr,
                            std::vector<std::string> stops = {});

  void add(const AnswerPart& part);
  // After the last part.
  nlohmann::ordered_json whole(const TokenUsage& usage) const;

  // Events of a stream, each with its name: before the first part, for a part (which may be none), after the
  // last. Instead of add(). usage: of the prompt.
  std::string start_events(const TokenUsage& usage);
  std::string part_events(const AnswerPart& part);
  std::string end_events(const TokenUsage& usage);

 private:
  AnswerDelta read(const AnswerPart& part);
  std::string open_block(nlohmann::ordered_json block, int call);
  std::string close_block();
  std::string block_delta(nlohmann::ordered_json delta) const;
  nlohmann::ordered_json stop_json() const;

  static constexpr int kNoBlock = -3, kThoughtBlock = -2, kTextBlock = -1;  // else the number of a tool call

  std::string model_, id_;
  std::shared_ptr<const ToolFormat> tool_format_;
  std::unique_ptr<ToolAnswer> reader_;  // null: the text is the answer
  std::vector<std::string> stops_;      // a template's own are no news to the client
  std::string thought_, text_;
  std::vector<ToolCallPart> calls_;  // whole
  AnswerPart last_;
  int n_blocks_ = 0;           // of a stream, so far
  int open_block_ = kNoBlock;  // the one that goes on
};

}  // namespace kvant
