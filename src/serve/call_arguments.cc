#include "serve/call_arguments.h"

#include <optional>

#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

// Parses a text as a JSON object. Returns nothing if the text is not a JSON object.
std::optional<Json> object_of(const std::string& text) {
  auto parsed = parse_json(text);
  if (!parsed.ok()) return std::nullopt;
  // Some clients encode the arguments twice.
  if (parsed->is_string()) parsed = parse_json(parsed->get<std::string>());
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  return std::move(parsed).value();
}

}  // namespace

std::string call_arguments(const Json* value) {
  if (value == nullptr || value->is_null()) return "{}";
  if (value->is_object()) return value->dump();
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (is_blank(text) || text == "null") return "{}";
    if (const auto object = object_of(text)) return text.front() == '"' ? object->dump() : text;
  }
  return Json{{"arguments", *value}}.dump();
}

Json call_json(const std::string& id, const std::string& name, const Json* arguments) {
  return {{"id", id},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", call_arguments(arguments)}}}};
}

}  // namespace kvant
