// Answers in the format of the OpenAI API: whole, or as chunks of a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "model/tokenizer.h"
#include "serve/answer_stream.h"

namespace kvant {

// A name that no other answer has, after the prefix.
std::string random_id(const char* prefix);
// What a guard has seen of an answer.
nlohmann::ordered_json guard_json(const GuardTally& tally);
// The text of a JSON value; bytes that are not UTF-8 become U+FFFD.
std::string response_text(const nlohmann::ordered_json& json);
// An event of a stream (server-sent events, WHATWG HTML section 9.2).
std::string sse_event(const std::string& data);

class ApiResponse {
 public:
  // tokenizer outlives it. tool_format: null: answers are text.
  ApiResponse(const Tokenizer& tokenizer, bool is_chat, bool wants_probabilities,
              std::shared_ptr<const ToolFormat> tool_format, std::string model, std::string fingerprint);

  // What an answer's part adds, as a chunk; null: nothing yet. choice: its number among all answers.
  nlohmann::ordered_json chunk(int choice, const AnswerPart& part);
  // A stream's chunk without an answer.
  nlohmann::ordered_json usage_chunk(const TokenUsage& usage) const;

  // The same collected: add() all parts, then whole().
  void add(int choice, const AnswerPart& part);
  nlohmann::ordered_json whole(const TokenUsage& usage) const;

 private:
  struct Choice {
    std::string thought, text;
    std::vector<ToolCallPart> calls;     // whole: complete ones
    std::unique_ptr<ToolAnswer> reader;  // null: the text is the answer
    std::vector<ReportedToken> tokens;
    GenerationEnd end = GenerationEnd::none;
    bool started = false;     // in a stream: its first chunk was sent
    std::int64_t offset = 0;  // characters before the tokens that come next (text_logprobs.h)
  };
  Choice& choice(int number);
  static nlohmann::ordered_json finish_reason(const Choice& choice, GenerationEnd end);
  nlohmann::ordered_json envelope(const char* object) const;
  void start_echo(const AnswerPart& part, Choice& choice) const;
  nlohmann::ordered_json probabilities(std::span<const ReportedToken> tokens, std::int64_t& offset) const;
  nlohmann::ordered_json shadow_token(const ShadowToken& shadow) const;
  nlohmann::ordered_json chat_token(const TokenProbability& token) const;
  nlohmann::ordered_json chat_probabilities(std::span<const ReportedToken> tokens) const;

  const Tokenizer& tokenizer_;
  bool is_chat_;
  bool wants_probabilities_;
  std::shared_ptr<const ToolFormat> tool_format_;
  std::string model_, fingerprint_, id_;
  std::int64_t created_;  // seconds since 1970
  std::vector<Choice> choices_;
};

}  // namespace kvant
