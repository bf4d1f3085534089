// Reads prompts that are texts or tokens, for /v1/completions and /v1/embeddings. A list of prompts becomes
// one request per prompt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "serve/api_request.h"
#include "serve/json_fields.h"

namespace kvant {

// PromptReading describes how the text of a prompt becomes tokens. By default, the texts of control tokens
// become control tokens, because the client writes its own template. With a suffix, the prompt is plain text.
struct PromptReading {
  bool add_special = true;
  bool parse_special = true;
  std::string suffix = {};
};

struct TextPrompt {
  std::vector<std::int32_t> tokens;
  std::string text;  // empty if the client gave tokens or a suffix
};

// Reads `add_special_tokens`, `parse_special` and `suffix`.
PromptReading read_prompt_reading(JsonFields& fields);

// Reads the member `key`, which is a text, a list of tokens, or a list of texts and lists of tokens. Mistakes
// become the error of `fields`.
std::vector<TextPrompt> read_prompts(JsonFields& fields, const char* key, const PromptReading& reading,
                                     const Tokenizer& tokenizer, const ApiLimits& limits);

}  // namespace kvant
