#include "base/json_reader.h"

#include <array>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Checks the limits by counting brackets and commas outside of strings, before any memory is allocated for
// values.
Status check_limits(std::string_view text) {
  // For each open container, holds the number of its members so far. Members of arrays are not counted.
  std::array<int, kMaxJsonDepth + 1> members{};
  std::array<bool, kMaxJsonDepth + 1> is_object{};
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++i;  // An escaped quote does not end the string.
    } else if (c == '[' || c == '{') {
      if (depth == kMaxJsonDepth)
        return error("not valid JSON for kvant: nested more than {} levels deep at byte {}", kMaxJsonDepth,
                     i);
      ++depth;
      members[depth] = 1;
      is_object[depth] = c == '{';
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    } else if (c == ',' && is_object[depth] && ++members[depth] > kMaxJsonMembers) {
      return error("not valid JSON for kvant: an object has more than {} members at byte {}", kMaxJsonMembers,
                   i);
    }
  }
  return {};
}

const Json* member(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  KVANT_RETURN_IF_ERROR(check_limits(text));
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& failure) {  // The library reports a syntax error by an exception.
    if (failure.byte > text.size()) return error("not valid JSON: it ends too early");
    return error("not valid JSON: byte {} is unexpected", failure.byte);
  } catch (const Json::out_of_range&) {
    return error("not valid JSON: a number is out of range");
  }
}

std::optional<std::string> text_member(const Json& json, const char* key) {
  const Json* found = member(json, key);
  if (found == nullptr || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

std::optional<double> number_member(const Json& json, const char* key) {
  const Json* found = member(json, key);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::optional<std::vector<double>> numbers_member(const Json& json, const char* key) {
  const Json* found = member(json, key);
  if (found == nullptr || !found->is_array()) return std::nullopt;
  std::vector<double> numbers;
  for (const Json& item : *found) {
    if (!item.is_number()) return std::nullopt;
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

}  // namespace kvant
