// Writes the member `logprobs` of responses to POST /v1/completions. The format is OpenAI's, in which names
// of tokens must be unique.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "generate/generation.h"
#include "model/tokenizer.h"

namespace kvant {

// Counts the characters (Unicode code points) that begin in these bytes.
std::int64_t begun_characters(std::string_view text);

// Returns {"tokens", "token_logprobs", "top_logprobs", "text_offset"} for `tokens`, which continue a text.
// The chosen token is always in the list of top tokens. Each name in a list of top tokens must be unique.
// Incomplete UTF-8 is written "bytes:\xe2\x82", and of two tokens with the same text, one is "token_id:N".
// `offset` is the number of characters before the tokens, and the function advances it past the tokens. The
// offset is negative for tokens before the text.
nlohmann::ordered_json text_logprobs(const Tokenizer& tokenizer, std::span<const ReportedToken> tokens,
                                     std::int64_t& offset);

}  // namespace kvant
