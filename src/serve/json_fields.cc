#include "serve/json_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace kvant {
namespace {

constexpr std::size_t kMaxHints = 32;     // a request remembers at most this many hints
constexpr std::size_t kMaxHintName = 80;  // bytes

// Removes list indices from a member's name, so "tools[3].type" and "tools[4].type" count as one hint.
std::string without_numbers(const std::string& name) {
  std::string plain;
  bool in_brackets = false;
  for (const char c : name) {
    if (c == ']') in_brackets = false;
    if (!in_brackets) plain += c;
    if (c == '[') in_brackets = true;
  }
  return plain;
}

}  // namespace

JsonFields::JsonFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
  if (!json.is_object())
    error_ = ApiError{.message = where_.empty() ? "the body must be a JSON object"
                                                : fmt::format("'{}' must be a JSON object", where_),
                      .parameter = where_,
                      .code = kInvalidType};
  if (!where_.empty()) where_ += '.';
}

void JsonFields::fail(const std::string& key, std::string message, const char* code) {
  if (!error_) error_ = ApiError{.message = std::move(message), .parameter = where_ + key, .code = code};
}

void JsonFields::fail(const std::optional<ApiError>& error) {
  if (!error_) error_ = error;
}

void JsonFields::fail_missing(const char* key, std::string_view give) {
  fail(key, fmt::format("'{}{}' is missing: give {}", where_, key, give), kMissingParameter);
}

void JsonFields::take(const JsonFields& part) {
  fail(part.error());
  for (const std::string& hint : part.hints()) add_hint(hint);
}

void JsonFields::add_hint(std::string name) {
  name = without_numbers(name);
  if (name.size() > kMaxHintName) name = name.substr(0, kMaxHintName) + "...";
  if (hints_.size() < kMaxHints && std::ranges::find(hints_, name) == hints_.end())
    hints_.push_back(std::move(name));
}

const JsonFields::Json* JsonFields::value(const char* key) {
  read_.insert(key);
  if (!json_.is_object() || default_.contains(key)) return nullptr;
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> JsonFields::number(const char* key, double low, double high) {
  const Json* json = value(key);
  if (json == nullptr) return std::nullopt;
  if (json->is_number()) {
    const double number = json->get<double>();
    if (number >= low && number <= high) return number;
  }
  fail(key, fmt::format("'{}{}' must be a number from {} to {}", where_, key, low, high),
       json->is_number() ? kInvalidValue : kInvalidType);
  return std::nullopt;
}

std::optional<std::int64_t> JsonFields::integer(const char* key, std::int64_t low, std::int64_t high) {
  const Json* json = value(key);
  if (json == nullptr) return std::nullopt;
  bool is_integer = json->is_number_integer();
  if (json->is_number_float()) {  // some clients write every number as a floating-point number
    constexpr double kExact = 1LL << 53;
    const double number = json->get<double>();
    is_integer = number == std::floor(number);
    if (is_integer && std::abs(number) <= kExact && number >= static_cast<double>(low) &&
        number <= static_cast<double>(high))
      return static_cast<std::int64_t>(number);
  } else if (is_integer) {
    const bool too_large = json->is_number_unsigned() && json->get<std::uint64_t>() > INT64_MAX;
    const std::int64_t integer = too_large ? INT64_MAX : json->get<std::int64_t>();
    if (!too_large && integer >= low && integer <= high) return integer;
  }
  std::vector<std::int64_t> others = also_valid_[key];
  std::erase_if(others, [&](std::int64_t other) { return other >= low && other <= high; });
  fail(key,
       fmt::format("'{}{}' must be an integer from {} to {}{}", where_, key, low, high,
                   others.empty() ? "" : fmt::format(", or {}", fmt::join(others, " or "))),
       is_integer ? kInvalidValue : kInvalidType);
  return std::nullopt;
}

std::optional<bool> JsonFields::boolean(const char* key) {
  const Json* json = value(key);
  if (json == nullptr) return std::nullopt;
  if (json->is_boolean()) return json->get<bool>();
  fail(key, fmt::format("'{}{}' must be true or false", where_, key), kInvalidType);
  return std::nullopt;
}

std::optional<std::string> JsonFields::text(const char* key) {
  const Json* json = value(key);
  if (json == nullptr) return std::nullopt;
  if (json->is_string()) return json->get<std::string>();
  fail(key, fmt::format("'{}{}' must be a text", where_, key), kInvalidType);
  return std::nullopt;
}

std::string JsonFields::word(const char* key, const std::vector<const char*>& words, Missing missing) {
  std::string known = words.front();
  for (std::size_t i = 1; i < words.size(); ++i)
    known += fmt::format("{}{}", i + 1 < words.size() ? ", " : " or ", words[i]);
  const auto given = text(key);
  if (given && std::ranges::find(words, *given) != words.end()) return *given;
  if (given) {
    fail(key, fmt::format("'{}{}' must be {}", where_, key, known));
  } else if (missing == Missing::is_wrong) {
    fail_missing(key, known);
  }
  return words.front();
}

const JsonFields::Json* JsonFields::list(const char* key, const char* of) {
  const Json* json = value(key);
  if (json == nullptr || json->is_array()) return json;
  fail(key, fmt::format("'{}{}' must be a list of {}", where_, key, of), kInvalidType);
  return nullptr;
}

const JsonFields::Json* JsonFields::filled_list(const char* key, const char* of) {
  const Json* json = list(key, of);
  if (json == nullptr) {
    fail_missing(key, fmt::format("a list of {}", of));
  } else if (json->empty()) {
    fail(key, fmt::format("'{}{}' is an empty list: give a list of {}", where_, key, of));
  }
  return error_ ? nullptr : json;
}

std::vector<std::string> JsonFields::texts(const char* key, std::size_t max_count) {
  const Json* json = value(key);
  if (json == nullptr) return {};
  std::vector<std::string> texts;
  if (json->is_string()) {
    texts.push_back(json->get<std::string>());
  } else if (json->is_array() &&
             std::all_of(json->begin(), json->end(), [](const Json& item) { return item.is_string(); })) {
    texts = json->get<std::vector<std::string>>();
  } else {
    fail(key, fmt::format("'{}{}' must be a text, or a list of at most {} texts", where_, key, max_count),
         kInvalidType);
  }
  std::erase(texts, "");
  if (texts.size() <= max_count) return texts;
  fail(key,
       fmt::format("'{}{}' has {} texts, and at most {} are allowed", where_, key, texts.size(), max_count));
  return {};
}

void JsonFields::means_default(const char* key, const std::vector<Json>& values) {
  const Json* json = value(key);
  for (const Json& one : values)
    if (one.is_number_integer()) also_valid_[key].push_back(one.get<std::int64_t>());
  // nlohmann's comparison casts a large unsigned number to a negative number, which makes the comparison
  // wrong.
  const bool is_huge =
      json != nullptr && json->is_number_unsigned() && json->get<std::uint64_t>() > INT64_MAX;
  if (json != nullptr && !is_huge && std::ranges::find(values, *json) != values.end()) default_.insert(key);
  if (!default_.contains(key)) read_.erase(key);
}

void JsonFields::accept_only(const char* key, const std::vector<Json>& harmless, const char* why) {
  const Json* json = value(key);
  if (json == nullptr || std::ranges::find(harmless, *json) != harmless.end()) return;
  fail(key, fmt::format("'{}{}' is not supported: {}", where_, key, why), kUnsupportedParameter);
}

void JsonFields::leave_others() {
  if (!json_.is_object()) return;
  for (const auto& [key, json] : json_.items()) {
    if (!json.is_null() && !read_.contains(key)) add_hint(where_ + key);
  }
}

}  // namespace kvant
