#include "serve/text_prompts.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/infill_prompt.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

bool is_tokens(const Json& json) {
  return json.is_array() && !json.empty() &&
         std::all_of(json.begin(), json.end(), [](const Json& item) { return item.is_number_integer(); });
}

std::vector<std::int32_t> read_prompt(const Json& json, const char* key, const PromptReading& reading,
                                      const Tokenizer& tokenizer, const ApiLimits& limits,
                                      JsonFields& fields) {
  std::vector<std::int32_t> tokens;
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    auto encoded = reading.suffix.empty()
                       ? tokenizer.encode(text, reading.add_special, reading.parse_special)
                       : infill_prompt({.prefix = text, .suffix = reading.suffix}, tokenizer);
    if (encoded.ok()) return std::move(encoded).value();
    fields.fail(reading.suffix.empty() ? key : "suffix", encoded.error().message);
  } else if (!reading.suffix.empty()) {
    fields.fail(key, fmt::format("'{}' must be a text, or a list of texts, where there is a 'suffix'", key));
  } else if (is_tokens(json)) {
    for (const Json& item : json) {
      if (item < 0 || item >= limits.n_vocab) {
        fields.fail(
            key, fmt::format("token {} is not in the model's vocabulary of {}", item.dump(), limits.n_vocab));
        return tokens;
      }
      tokens.push_back(item.get<std::int32_t>());
    }
  } else {
    fields.fail(
        key,
        fmt::format("'{}' must be a text, a list of tokens, or a list of texts or of lists of tokens", key));
  }
  return tokens;
}

TextPrompt read_text_prompt(const Json& json, const char* key, const PromptReading& reading,
                            const Tokenizer& tokenizer, const ApiLimits& limits, JsonFields& fields) {
  return {read_prompt(json, key, reading, tokenizer, limits, fields),
          json.is_string() && reading.suffix.empty() ? json.get<std::string>() : ""};
}

}  // namespace

PromptReading read_prompt_reading(JsonFields& fields) {
  PromptReading reading;
  reading.add_special = fields.boolean("add_special_tokens").value_or(true);
  reading.parse_special = fields.boolean("parse_special").value_or(true);
  reading.suffix = fields.text("suffix").value_or("");
  return reading;
}

std::vector<TextPrompt> read_prompts(JsonFields& fields, const char* key, const PromptReading& reading,
                                     const Tokenizer& tokenizer, const ApiLimits& limits) {
  std::vector<TextPrompt> prompts;
  const Json* json = fields.value(key);
  if (json == nullptr) {
    fields.fail(key, fmt::format("there is no '{}'", key), kMissingParameter);
  } else if (!json->is_array() || is_tokens(*json)) {
    prompts.push_back(read_text_prompt(*json, key, reading, tokenizer, limits, fields));
  } else if (json->empty() || json->size() > limits.max_prompts) {
    fields.fail(key, fmt::format("'{}' lists {} texts, and a request has 1 to {}: send others in requests "
                                 "of their own",
                                 key, json->size(), limits.max_prompts));
  } else {
    for (const Json& item : *json)
      prompts.push_back(read_text_prompt(item, key, reading, tokenizer, limits, fields));
  }
  return prompts;
}

}  // namespace kvant
