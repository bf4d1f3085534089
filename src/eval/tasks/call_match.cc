#include "eval/tasks/call_match.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Lists the types of Python's JSON values.
enum class PythonType { none, boolean, integer, real, text, list, object };

PythonType type_of(const Json& value) {
  if (value.is_boolean()) return PythonType::boolean;
  if (value.is_number_integer()) return PythonType::integer;
  if (value.is_number()) return PythonType::real;
  if (value.is_string()) return PythonType::text;
  if (value.is_array()) return PythonType::list;
  return value.is_object() ? PythonType::object : PythonType::none;
}

std::optional<PythonType> type_named(const Json* name) {
  if (name == nullptr || !name->is_string()) return std::nullopt;
  const auto& text = name->get_ref<const std::string&>();
  if (text == "string" || text == "any") return PythonType::text;
  if (text == "integer") return PythonType::integer;
  if (text == "float") return PythonType::real;
  if (text == "boolean") return PythonType::boolean;
  if (text == "array" || text == "tuple") return PythonType::list;
  if (text == "dict") return PythonType::object;
  return std::nullopt;
}

const Json* member(const Json& object, const std::string& name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

bool is_empty_text(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().empty();
}

double number_of(const Json& value) {
  return value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>();
}

// Compares as Python's == does: numbers and booleans by value, objects without regard to order.
bool equals(const Json& a, const Json& b) {
  if ((a.is_number() || a.is_boolean()) && (b.is_number() || b.is_boolean()))
    return number_of(a) == number_of(b);
  if (a.is_array() && b.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), equals);
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    return std::ranges::all_of(a.items(), [&](const auto& item) {
      const Json* other = member(b, item.key());
      return other != nullptr && equals(item.value(), *other);
    });
  }
  return a == b;
}

// Removes spaces and ",./-_*^" from a text, makes the text lowercase, and replaces single quotes by double
// ones.
Json standard(const Json& value) {
  if (!value.is_string()) return value;
  std::string text;
  for (const char c : value.get_ref<const std::string&>()) {
    if (std::string_view(" ,./-_*^").find(c) != std::string_view::npos) continue;
    text += c == '\'' ? '"' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

Json standard_items(const Json& list) {
  Json items = Json::array();
  for (const Json& item : list) items.push_back(standard(item));
  return items;
}

bool is_in(const Json& value, const Json& values) {
  return std::ranges::any_of(values, [&](const Json& other) { return equals(value, other); });
}

bool may_be_left_out(const Json& answers) {
  return std::ranges::any_of(answers, is_empty_text);
}

struct TypeCheck {
  bool is_right = false;
  // The value or the answers have another type than the function's description. The value must then equal an
  // answer exactly.
  bool is_variable = false;
};

TypeCheck check_type(const Json& value, const Json& answers, PythonType expected,
                     std::optional<PythonType> nested) {
  std::optional<PythonType> answered;
  if (answers.is_array()) {
    const auto first = std::ranges::find_if_not(answers, is_empty_text);
    if (first != answers.end()) answered = type_of(*first);
  }
  const bool is_variable = answered && *answered != expected;
  if (type_of(value) != expected) return {answered == type_of(value), true};
  if (!nested) return {true, is_variable};
  for (const Json& answer : answers) {
    const bool fits = !answer.is_array() || std::ranges::all_of(value, [&](const Json& item) {
      return check_type(item, answer, *nested, std::nullopt).is_right;
    });
    if (fits) return {true, is_variable};
  }
  return {false, is_variable};
}

bool object_matches(const Json& value, const Json& answer) {
  if (!value.is_object() || !answer.is_object()) return false;
  for (const auto& [key, item] : value.items()) {
    const Json* answers = member(answer, key);
    if (answers == nullptr || !is_in(standard(item), standard_items(*answers))) return false;
  }
  return std::ranges::all_of(answer.items(), [&](const auto& item) {
    return value.contains(item.key()) || may_be_left_out(item.value());
  });
}

bool objects_match(const Json& values, const Json& answer) {
  // An empty list equals the empty text that stands for a parameter that may be left out.
  if (!answer.is_array()) return values.empty() && is_empty_text(answer);
  return std::equal(values.begin(), values.end(), answer.begin(), answer.end(), object_matches);
}

bool list_matches(const Json& value, const Json& answer) {
  if (is_empty_text(answer)) return value.empty();
  return answer.is_array() && equals(standard_items(value), standard_items(answer));
}

bool value_matches(Json value, const Json& description, const Json& answers) {
  const auto expected = type_named(member(description, "type"));
  if (!expected) return false;
  std::optional<PythonType> nested;
  if (*expected == PythonType::list) {
    const Json* items = member(description, "items");
    nested = items == nullptr ? std::nullopt : type_named(member(*items, "type"));
    if (!nested) return false;
  }
  if (*expected == PythonType::real && value.is_number_integer()) value = value.get<double>();
  const TypeCheck type = check_type(value, answers, *expected, nested);
  if (!type.is_right) return false;
  if (type.is_variable) return is_in(value, answers);
  const auto any = [&](bool (*matches)(const Json&, const Json&)) {
    return std::ranges::any_of(answers, [&](const Json& answer) { return matches(value, answer); });
  };
  switch (*expected) {
    case PythonType::object:
      return any(object_matches);
    case PythonType::list:
      return any(nested == PythonType::object ? objects_match : list_matches);
    case PythonType::text:
      return is_in(standard(value), standard_items(answers));
    default:
      return is_in(value, answers);
  }
}

// Returns whether the call is the one that `answer`, {NAME: {PARAMETER: [VALUE..]}}, describes.
bool call_matches(const MadeCall& call, const Json& function, const Json& answer) {
  const Json* name = member(function, "name");
  const Json* parameters = member(function, "parameters");
  if (name == nullptr || parameters == nullptr || call.name != tool_name(name->get<std::string>()))
    return false;
  const Json& answers = answer.front();
  const Json* descriptions = member(*parameters, "properties");
  const Json* required = member(*parameters, "required");
  if (descriptions == nullptr || !call.arguments.is_object()) return false;
  if (required != nullptr && !std::ranges::all_of(*required, [&](const Json& parameter) {
        return call.arguments.contains(parameter.get<std::string>());
      }))
    return false;
  for (const auto& [parameter, value] : call.arguments.items()) {
    const Json* description = member(*descriptions, parameter);
    const Json* right = member(answers, parameter);
    if (description == nullptr || right == nullptr || !value_matches(value, *description, *right))
      return false;
  }
  return std::ranges::all_of(answers.items(), [&](const auto& item) {
    return call.arguments.contains(item.key()) || may_be_left_out(item.value());
  });
}

}  // namespace

std::string tool_name(const std::string& function) {
  std::string name = function;
  std::ranges::replace(name, '.', '_');
  return name;
}

bool calls_match(const std::vector<MadeCall>& calls, const Json& functions, const Json& answers) {
  if (calls.size() != answers.size()) return false;
  std::set<std::size_t> taken;
  return std::ranges::all_of(answers, [&](const Json& answer) {
    const std::string name = answer.items().begin().key();
    const auto function =
        std::ranges::find_if(functions, [&](const Json& f) { return f.value("name", "") == name; });
    if (function == functions.end()) return false;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!taken.contains(i) && call_matches(calls[i], *function, answer)) return taken.insert(i).second;
    }
    return false;
  });
}

}  // namespace kvant
