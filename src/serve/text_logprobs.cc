#include "serve/text_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/utf8.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U;
}

std::string name_of(const std::string& piece) {
  if (!first_invalid_utf8(piece)) return piece;
  std::string name = "bytes:";
  for (const char byte : piece) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

Json probability(const TokenProbability& token) {
  return std::isnan(token.log_probability) ? Json(nullptr) : Json(token.log_probability);
}

// Returns the probabilities of a token and its alternatives. Returns null for the first token of a text,
// which nothing predicts.
Json top_probabilities(const Tokenizer& tokenizer, const ReportedToken& token) {
  if (std::isnan(token.chosen.log_probability)) return nullptr;
  const std::string chosen = name_of(tokenizer.piece(token.chosen.token));
  Json top = Json::object();
  bool has_chosen = false;
  for (const TokenProbability& other : token.alternatives) {
    const bool is_chosen = other.token == token.chosen.token;
    std::string name = is_chosen ? chosen : name_of(tokenizer.piece(other.token));
    if (!is_chosen && (name == chosen || top.contains(name))) name = fmt::format("token_id:{}", other.token);
    top[name] = probability(other);
    has_chosen = has_chosen || is_chosen;
  }
  if (!has_chosen) top[chosen] = probability(token.chosen);
  return top;
}

}  // namespace

std::int64_t begun_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return !continues_character(byte); });
}

Json text_logprobs(const Tokenizer& tokenizer, std::span<const ReportedToken> tokens, std::int64_t& offset) {
  Json result = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
  for (const ReportedToken& token : tokens) {
    const std::string piece = tokenizer.piece(token.chosen.token);
    const bool is_within_character = !piece.empty() && continues_character(piece.front());
    result["tokens"].push_back(name_of(piece));
    result["token_logprobs"].push_back(probability(token.chosen));
    result["top_logprobs"].push_back(top_probabilities(tokenizer, token));
    result["text_offset"].push_back(std::max<std::int64_t>(offset - (is_within_character ? 1 : 0), 0));
    if (!token.is_hidden) offset += begun_characters(piece);
  }
  return result;
}

}  // namespace kvant
