#include "serve/sampling_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <random>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kHottest = 100;
constexpr double kMaxPenalty = 100;
constexpr double kMaxBias = 1e6;
constexpr std::size_t kMaxBiases = 4096;

// Returns the request's number under `key`, which must be in [low, high], or `otherwise` if the request has
// none.
float number(JsonFields& fields, const char* key, double low, double high, float otherwise) {
  return static_cast<float>(fields.number(key, low, high).value_or(otherwise));
}

std::optional<std::int32_t> token_number(const std::string& text) {
  std::int32_t token = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), token);
  return failure == std::errc() && end == text.data() + text.size() ? std::optional(token) : std::nullopt;
}

// Returns the tokens that a client names by a number or a text. The result is empty if the vocabulary does
// not have the number.
std::vector<std::int32_t> biased_tokens(const Json& named, const Tokenizer& tokenizer, int n_vocab) {
  const auto is_known = [&](std::int64_t token) { return token >= 0 && token < n_vocab; };
  if (named.is_number_integer()) {
    const bool is_small = !named.is_number_unsigned() || named.get<std::uint64_t>() < INT32_MAX;
    const std::int64_t token = is_small ? named.get<std::int64_t>() : -1;
    return is_known(token) ? std::vector{static_cast<std::int32_t>(token)} : std::vector<std::int32_t>();
  }
  if (!named.is_string()) return {};
  if (const auto token = token_number(named.get<std::string>()))
    return is_known(*token) ? std::vector{*token} : std::vector<std::int32_t>();
  const auto tokens =
      tokenizer.encode(named.get<std::string>(), /*add_special=*/false, /*parse_special=*/true);
  return tokens.ok() ? *tokens : std::vector<std::int32_t>();
}

// Reads a bias, which is a number or false. false forbids the token.
std::optional<float> bias_value(const Json& json) {
  if (json == false) return -INFINITY;
  if (!json.is_number() || std::abs(json.get<double>()) > kMaxBias) return std::nullopt;
  return json.get<float>();
}

void add_bias(const Json& named, const Json& value, const Tokenizer& tokenizer, int n_vocab,
              JsonFields& fields, std::vector<TokenBias>& biases) {
  const auto bias = bias_value(value);
  const std::vector<std::int32_t> tokens = biased_tokens(named, tokenizer, n_vocab);
  const auto text = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  if (!bias)
    fields.fail("logit_bias",
                fmt::format("'logit_bias' has {} for {}: give a number up to {}, or false", text(value),
                            text(named), kMaxBias),
                value.is_number() ? kInvalidValue : kInvalidType);
  if (tokens.empty())
    fields.fail("logit_bias",
                fmt::format("'logit_bias' has {}, which is neither a token of the model's vocabulary of "
                            "{} nor a text",
                            text(named), n_vocab));
  if (fields.error()) return;
  for (const std::int32_t token : tokens) biases.push_back({token, *bias});
}

// Reads the biases in OpenAI's form, {"15043": 1.5}, and in llama-server's forms, {"text": 1.5} and [[15043,
// 1.5], ["text", false]].
std::vector<TokenBias> read_biases(JsonFields& fields, const Tokenizer& tokenizer, int n_vocab) {
  std::vector<TokenBias> biases;
  const Json* json = fields.value("logit_bias");
  if (json == nullptr) return biases;
  if (!json->is_structured() || json->size() > kMaxBiases) {
    fields.fail("logit_bias",
                fmt::format("'logit_bias' must be an object of tokens and numbers, or a list of pairs "
                            "of these, at most {}",
                            kMaxBiases),
                json->is_structured() ? kInvalidValue : kInvalidType);
    return biases;
  }
  if (json->is_object()) {
    for (const auto& [name, value] : json->items()) add_bias(name, value, tokenizer, n_vocab, fields, biases);
    return biases;
  }
  for (const Json& pair : *json) {
    if (pair.is_array() && pair.size() == 2) {
      add_bias(pair[0], pair[1], tokenizer, n_vocab, fields, biases);
    } else {
      fields.fail("logit_bias",
                  fmt::format("'logit_bias' has {}, which is not a pair of a token and a number",
                              pair.dump(-1, ' ', false, Json::error_handler_t::replace)),
                  kInvalidType);
    }
  }
  return biases;
}

// Forbids all tokens that end a completion, so the completion goes on to its limit.
void forbid_the_end(const Tokenizer& tokenizer, int n_vocab, std::vector<TokenBias>& biases) {
  for (std::int32_t token = 0; token < n_vocab; ++token) {
    if (tokenizer.ends_generation(token)) biases.push_back({token, -INFINITY});
  }
}

PenaltyOptions read_penalties(JsonFields& fields) {
  PenaltyOptions penalties;
  penalties.presence = number(fields, "presence_penalty", -kMaxPenalty, kMaxPenalty, 0);
  penalties.frequency = number(fields, "frequency_penalty", -kMaxPenalty, kMaxPenalty, 0);
  const auto repeat = fields.number("repeat_penalty", 0, kMaxPenalty);  // llama-server's name
  const auto repetition =
      fields.number("repetition_penalty", 0, kMaxPenalty);  // vLLM's name, which counts the whole text
  const auto last_n = fields.integer("repeat_last_n", -1, INT32_MAX);
  if (repeat && repetition && *repeat != *repetition)
    fields.fail("repetition_penalty",
                "'repetition_penalty' differs from 'repeat_penalty': give only one of them");
  penalties.repeat = static_cast<float>(repeat ? *repeat : repetition.value_or(1));
  if (repetition && !repeat) penalties.repeat_last_n = -1;
  if (last_n) penalties.repeat_last_n = static_cast<int>(*last_n);
  if (!(penalties.repeat > 0))
    fields.fail(repeat ? "repeat_penalty" : "repetition_penalty",
                fmt::format("'{}' must be above 0", repeat ? "repeat_penalty" : "repetition_penalty"));
  return penalties;
}

}  // namespace

SamplerOptions read_sampling(JsonFields& fields, const Tokenizer& tokenizer, int n_vocab) {
  SamplerOptions sampling;
  sampling.temperature = number(fields, "temperature", 0, kHottest, 1);
  sampling.top_p = number(fields, "top_p", 0, 1, 1);
  sampling.min_p = number(fields, "min_p", 0, 1, 0);
  fields.means_default("top_k", {-1});
  sampling.top_k = static_cast<int>(fields.integer("top_k", 0, INT32_MAX).value_or(0));
  for (const char* name : {"typical_p", "typical"}) {
    if (const auto typical = fields.number(name, 0, 1)) sampling.typical_p = static_cast<float>(*typical);
  }
  fields.means_default("top_n_sigma", {-1});
  sampling.top_n_sigma = number(fields, "top_n_sigma", 0, kHottest, 0);
  sampling.xtc_probability = number(fields, "xtc_probability", 0, 1, 0);
  sampling.xtc_threshold = number(fields, "xtc_threshold", 0, 1, 0.1F);
  sampling.dynatemp_range = number(fields, "dynatemp_range", 0, kHottest, 0);
  sampling.dynatemp_exponent = number(fields, "dynatemp_exponent", 0, kHottest, 1);
  for (const auto& [name, value] : {std::pair("top_p", sampling.top_p), {"typical_p", sampling.typical_p}}) {
    if (!(value > 0)) fields.fail(name, fmt::format("'{}' must be above 0 and at most 1", name));
  }
  sampling.penalties = read_penalties(fields);
  sampling.bias = read_biases(fields, tokenizer, n_vocab);
  if (fields.boolean("ignore_eos").value_or(false)) forbid_the_end(tokenizer, n_vocab, sampling.bias);
  fields.means_default("seed", {-1});
  const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  sampling.seed = seed ? static_cast<std::uint32_t>(*seed) : std::random_device()();
  return sampling;
}

}  // namespace kvant
