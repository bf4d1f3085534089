// `logprobs` of POST /v1/completions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "generate/generation.h"
#include "model/tokenizer.h"

namespace kvant {

// Characters (Unicode code points) that begin in these bytes.
std::int64_t begun_characters(std::string_view text);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of the next tokens of a text, the chosen token
// among the top ones. Every name stands for one token: what is not whole UTF-8 is written "bytes:\xe2\x82",
// and of two tokens with one text the less likely is "token_id:N". offset: the characters of the text before
// these tokens, and afterwards with them; below 0: those of tokens that come before the text.
nlohmann::ordered_json text_logprobs(const Tokenizer& tokenizer, std::span<const ReportedToken> tokens,
                                     std::int64_t& offset);

}  // namespace kvant
