#include "serve/json_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvant {

JsonFields::JsonFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
  if (!json.is_object())
    error_ = ApiError{.message = where_.empty() ? "the body must be a JSON object"
                                                : fmt::format("'{}' must be a JSON object", where_)};
  if (!where_.empty()) where_ += '.';
}

void JsonFields::fail(const std::string& key, std::string message) {
  if (!error_) error_ = ApiError{.message = std::move(message), .parameter = where_ + key};
}

void JsonFields::fail(const std::optional<ApiError>& error) {
  if (!error_) error_ = error;
}

const JsonFields::Json* JsonFields::value(const char* key) {
  read_.insert(key);
  if (!json_.is_object()) return nullptr;
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
  fail(key, fmt::format("'{}{}' must be a number from {} to {}", where_, key, low, high));
  return std::nullopt;
}

std::optional<std::int64_t> JsonFields::integer(const char* key, std::int64_t low, std::int64_t high) {
  const Json* json = value(key);
  if (json == nullptr) return std::nullopt;
  if (json->is_number_integer()) {
    const bool too_large = json->is_number_unsigned() && json->get<std::uint64_t>() > INT64_MAX;
    const std::int64_t integer = too_large ? INT64_MAX : json->get<std::int64_t>();
    if (!too_large && integer >= low && integer <= high) return integer;
  }
  fail(key, fmt::format("'{}{}' must be an integer from {} to {}", where_, key, low, high));
  return std::nullopt;
}

std::optional<bool> JsonFields::boolean(const char* key) {
  const Json* json = value(key);
  if (json == nullptr) return std::nullopt;
  if (json->is_boolean()) return json->get<bool>();
  fail(key, fmt::format("'{}{}' must be true or false", where_, key));
  return std::nullopt;
}

std::optional<std::string> JsonFields::text(const char* key) {
  const Json* json = value(key);
  if (json == nullptr) return std::nullopt;
  if (json->is_string()) return json->get<std::string>();
  fail(key, fmt::format("'{}{}' must be a text", where_, key));
  return std::nullopt;
}

std::vector<std::string> JsonFields::texts(const char* key, std::size_t max_count) {
  const Json* json = value(key);
  if (json == nullptr) return {};
  const auto is_text = [](const Json& item) {
    return item.is_string() && !item.get_ref<const std::string&>().empty();
  };
  if (is_text(*json)) return {json->get<std::string>()};
  if (json->is_array() && json->size() <= max_count && std::all_of(json->begin(), json->end(), is_text))
    return json->get<std::vector<std::string>>();
  fail(key, fmt::format("'{}{}' must be a text, or a list of at most {}, none of them empty", where_, key,
                        max_count));
  return {};
}

void JsonFields::accept_only(const char* key, const std::vector<Json>& harmless, const char* why) {
  const Json* json = value(key);
  if (json == nullptr || std::ranges::find(harmless, *json) != harmless.end()) return;
  fail(key, fmt::format("'{}{}' is not supported: {}", where_, key, why));
}

void JsonFields::refuse_others() {
  if (!json_.is_object()) return;
  for (const auto& [key, json] : json_.items()) {
    if (!json.is_null() && !read_.contains(key)) {
      fail(key, fmt::format("'{}{}' is not a parameter that kvant knows: leave it out", where_, key));
    }
  }
}

}  // namespace kvant
