// Writes `logprobs` of POST /v1/completions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "generate/generation.h"
#include "model/tokenizer.h"

namespace kvant {

// Counts the characters (Unicode code points) that begin in these bytes.
std::int64_t begun_characters(std::string_view text);

// Returns {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of the next tokens of a text, with the
// chosen token among the top ones. Every name stands for one token: incomplete UTF-8 is written
// "bytes:\xe2\x82", and of two tokens with one text the less likely is "token_id:N". `offset` is the number
// of characters before these tokens, and is advanced past them; it is negative for tokens before the text.
nlohmann::ordered_json text_logprobs(const Tokenizer& tokenizer, std::span<const ReportedToken> tokens,
                                     std::int64_t& offset);

}  // namespace kvant
