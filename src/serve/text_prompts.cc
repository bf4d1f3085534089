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

// Reads a list of tokens. `name` is the list's name in messages, such as "prompt[2]".
std::vector<std::int32_t> read_tokens(const Json& json, const char* key, const std::string& name, int n_vocab,
                                      JsonFields& fields) {
  std::vector<std::int32_t> tokens;
  for (const Json& item : json) {
    if (item < 0 || item >= n_vocab) {
      fields.fail(key, fmt::format("'{}' has the token {}, which is not in the model's vocabulary of {}",
                                   name, item.dump(), n_vocab));
      return {};
    }
    tokens.push_back(item.get<std::int32_t>());
  }
  return tokens;
}

TextPrompt read_prompt(const Json& json, const char* key, const std::string& name,
                       const PromptReading& reading, const Tokenizer& tokenizer, const ApiLimits& limits,
                       JsonFields& fields) {
  const bool has_suffix = !reading.suffix.empty();
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    auto encoded = has_suffix ? infill_prompt({.prefix = text, .suffix = reading.suffix}, tokenizer)
                              : tokenizer.encode(text, reading.add_special, reading.parse_special);
    if (!encoded.ok()) {
      fields.fail(has_suffix ? "suffix" : key, encoded.error().message);
    } else if (encoded->empty()) {
      fields.fail(key, fmt::format("'{}' is empty: give a text or a list of tokens", name));
    } else {
      return {std::move(encoded).value(), has_suffix ? "" : text};
    }
  } else if (has_suffix) {
    fields.fail(key, fmt::format("'{}' must be a text, where there is a 'suffix'", name), kInvalidType);
  } else if (is_tokens(json)) {
    return {read_tokens(json, key, name, limits.n_vocab, fields), ""};
  } else if (json.is_array() && json.empty()) {
    fields.fail(key, fmt::format("'{}' is empty: give a text or a list of tokens", name));
  } else {
    fields.fail(key, fmt::format("'{}' must be a text or a list of tokens", name), kInvalidType);
  }
  return {};
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
    fields.fail_missing(key, "a text, or a list of texts");
  } else if (!json->is_array() || json->empty() || is_tokens(*json)) {
    prompts.push_back(read_prompt(*json, key, key, reading, tokenizer, limits, fields));
  } else if (json->size() > limits.max_prompts) {
    fields.fail(
        key,
        fmt::format("'{}' lists {} texts, and a request has at most {}: send the others in separate requests",
                    key, json->size(), limits.max_prompts));
  } else {
    for (std::size_t i = 0; i < json->size() && !fields.error(); ++i)
      prompts.push_back(
          read_prompt((*json)[i], key, fmt::format("{}[{}]", key, i), reading, tokenizer, limits, fields));
  }
  return prompts;
}

}  // namespace kvant
