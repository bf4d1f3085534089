// Writes completions in the format of the OpenAI API, whole or as chunks of a stream. The caller passes the
// parts of completions as they arrive, and gets chunks or one whole response.
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

// Returns `prefix` followed by 24 random hexadecimal digits.
std::string random_id(const char* prefix);
// Returns a guard's figures as JSON: the tokens compared, the tokens that differ, and the mean divergence.
nlohmann::ordered_json guard_json(const GuardTally& tally);
// Returns the text of a JSON value. Bytes that are not UTF-8 become U+FFFD.
std::string response_text(const nlohmann::ordered_json& json);
// Returns an event of a stream with the given data (server-sent events, WHATWG HTML section 9.2).
std::string sse_event(const std::string& data);

class ApiResponse {
 public:
  // `tokenizer` must outlive the object. If tool_format is null, completions are plain text.
  ApiResponse(const Tokenizer& tokenizer, bool is_chat, bool wants_probabilities,
              std::shared_ptr<const ToolFormat> tool_format, std::string model, std::string fingerprint);

  // Returns the chunk for a part, or null if there is nothing to send yet. `choice` is the completion's
  // number among all completions of the request.
  nlohmann::ordered_json chunk(int choice, const AnswerPart& part);
  // Returns the stream's last chunk, which reports the usage and has no completion.
  nlohmann::ordered_json usage_chunk(const TokenUsage& usage) const;

  // add() and whole() make a whole response. The caller calls add() for every part and then whole().
  void add(int choice, const AnswerPart& part);
  nlohmann::ordered_json whole(const TokenUsage& usage) const;

 private:
  struct Choice {
    std::string thought, text;
    std::vector<ToolCallPart> calls;     // complete calls, which only whole responses need
    std::unique_ptr<ToolAnswer> reader;  // null if completions are plain text
    std::vector<ReportedToken> tokens;
    GenerationEnd end = GenerationEnd::none;
    bool started = false;     // the stream's first chunk has been sent
    std::int64_t offset = 0;  // characters that precede the next tokens (text_logprobs.h)
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
