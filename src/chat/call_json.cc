#include "chat/call_json.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 6> kKeys = {"name", "arguments", "parameters",
                                                   "id",   "type",      "function"};
constexpr std::string_view kSpace = " \t\r\n";

std::size_t after_space(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

// Returns the position after the closing quotation mark of the string that begins at `at`. Returns nothing if
// the string is incomplete.
std::optional<std::size_t> string_end(std::string_view text, std::size_t at) {
  for (std::size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      return i + 1;
  }
  return std::nullopt;
}

// Returns where a value (container, string or bare word) ends. Returns nothing if the value may go on.
std::optional<std::size_t> value_end(std::string_view text, std::size_t at) {
  int depth = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const auto end = string_end(text, i);
      if (!end) return std::nullopt;
      i = *end - 1;
      if (depth == 0) return *end;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return i;  // the bracket closes the container around a bare word
      if (--depth == 0) return i + 1;
    } else if (c == ',' && depth == 0) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace

CallJson::CallJson(const Json& functions) {
  for (const Json& tool : functions) {
    const Json& function = tool.at("function");
    schemas_[function.at("name").get<std::string>()] = function.value("parameters", Json());
  }
}

bool CallJson::may_be_name(std::string_view beginning) const {
  return std::ranges::any_of(schemas_.items(), [&](const auto& item) {
    return std::string_view(item.key()).starts_with(beginning);
  });
}

// Returns whether the members that have arrived may belong to a call. A long object that is not a call is
// therefore recognized at its first member.
bool CallJson::may_be_call(std::string_view object) const {
  for (std::size_t at = 1;;) {
    at = after_space(object, at);
    if (at == object.size()) return true;
    if (object[at] == '}') return true;  // the complete object is checked elsewhere
    if (object[at] != '"') return false;
    const auto key_end = string_end(object, at);
    const std::string_view rest = object.substr(at + 1);
    if (!key_end) return std::ranges::any_of(kKeys, [&](auto key) { return key.starts_with(rest); });
    const std::string_view key = object.substr(at + 1, *key_end - at - 2);
    if (std::ranges::find(kKeys, key) == kKeys.end()) return false;
    at = after_space(object, *key_end);
    if (at == object.size()) return true;
    if (object[at] != ':') return false;
    at = after_space(object, at + 1);
    if (at == object.size()) return true;
    const auto end = value_end(object, at);
    if (key == "name") {
      if (object[at] != '"') return false;
      const std::string_view name = object.substr(at + 1);
      if (!end) return may_be_name(name);
      if (!is_offered(std::string(name.substr(0, *end - at - 2)))) return false;
    }
    if ((key == "arguments" || key == "parameters") && object[at] != '{') return false;
    if (!end) return true;
    at = after_space(object, *end);
    if (at < object.size() && object[at] == ',') ++at;
  }
}

bool CallJson::add_call(const Json& json, std::vector<WrittenCall>& calls) const {
  if (!json.is_object()) return false;
  const bool is_wrapped = json.contains("function") && json["function"].is_object();
  const Json& call = is_wrapped ? json["function"] : json;
  for (const auto& [key, value] : call.items()) {
    if (key == "function" || std::ranges::find(kKeys, key) == kKeys.end()) return false;
  }
  const auto name = text_member(call, "name");
  if (!name || !is_offered(*name)) return false;
  if (call.contains("arguments") == call.contains("parameters")) return false;
  const Json& arguments = call.contains("arguments") ? call["arguments"] : call["parameters"];
  if (!arguments.is_object() || (!arguments.empty() && arguments == schemas_[*name])) return false;
  calls.push_back({*name, arguments.dump()});
  return true;
}

CallJson::Reading CallJson::read(std::string_view text) const {
  if (text.empty() || (text[0] != '{' && text[0] != '[')) return {};
  const std::size_t first = text[0] == '[' ? after_space(text, 1) : 0;
  if (first == text.size()) return {.verdict = Verdict::unknown};
  if (text[first] != '{' || !may_be_call(text.substr(first))) return {};
  const auto end = value_end(text, 0);
  if (!end) return {.verdict = Verdict::unknown};
  const auto json = parse_json(text.substr(0, *end));
  if (!json.ok()) return {};
  Reading reading{.verdict = Verdict::yes, .length = *end};
  const bool are_calls =
      json->is_array()
          ? std::ranges::all_of(*json, [&](const Json& call) { return add_call(call, reading.calls); })
          : add_call(*json, reading.calls);
  return are_calls && !reading.calls.empty() ? reading : Reading{};
}

}  // namespace kvant
