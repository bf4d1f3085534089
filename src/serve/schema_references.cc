#include "serve/schema_references.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kVeryMany = std::int64_t{1} << 40;  // numbers stop growing there
constexpr std::size_t kMaxReferenceBytes = 256;

const Json* part_of(const Json& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

std::int64_t bounded_sum(std::int64_t a, std::int64_t b) {
  return a < 0 || b < 0 ? -1 : std::min(a + b, kVeryMany);
}

// The alternatives of a choice; null: it is none.
const Json* choice_of(const Json& schema) {
  const Json* one = part_of(schema, "oneOf");
  const Json* choice = one != nullptr ? one : part_of(schema, "anyOf");
  return choice != nullptr && choice->is_array() ? choice : nullptr;
}

std::int64_t types_of(const Json& schema) {
  const Json* types = part_of(schema, "type");
  return types != nullptr && types->is_array() ? std::max<std::int64_t>(1, std::ssize(*types)) : 1;
}

std::int64_t optional_properties(const Json& schema) {
  const Json* properties = part_of(schema, "properties");
  if (properties == nullptr || !properties->is_object()) return 0;
  const Json* required = part_of(schema, "required");
  const std::int64_t n_required = required != nullptr && required->is_array() ? std::ssize(*required) : 0;
  return std::max<std::int64_t>(0, std::ssize(*properties) - n_required);
}

}  // namespace

void SchemaSize::add(const SchemaSize& other, std::int64_t times) {
  times = std::min(times, kVeryMany >> 20);
  const auto multiple = [times](std::int64_t n) {
    return n < 0 ? -1 : n > (kVeryMany / times) ? kVeryMany : n * times;
  };
  parts = bounded_sum(parts, multiple(other.parts));
  optional_pairs = bounded_sum(optional_pairs, multiple(other.optional_pairs));
}

std::string SchemaReferences::fault(const Json& reference, const Json& root) {
  if (!reference.is_string()) return "has a '$ref' that is no text";
  const auto& text = reference.get_ref<const std::string&>();
  if (text.size() > kMaxReferenceBytes)
    return fmt::format("has a '$ref' of more than {} bytes", kMaxReferenceBytes);
  for (const std::string section : {"$defs", "definitions"}) {
    const std::string before = "#/" + section + "/";
    const Json* parts = part_of(root, section.c_str());
    if (text.starts_with(before) && parts != nullptr && parts->is_object() &&
        parts->contains(text.substr(before.size())) && text.find('/', before.size()) == std::string::npos)
      return "";
  }
  return fmt::format(
      "has the '$ref' '{}', which is none of the schema's own '#/$defs/NAME' and '#/definitions/NAME'", text);
}

std::string SchemaReferences::rule_name(const std::string& section, const std::string& name) {
  std::string mapped;
  bool in_others = false;
  for (const char c : section + "/" + name) {
    const bool is_kept =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    if (is_kept || !in_others) mapped += is_kept ? c : '-';
    in_others = !is_kept;
  }
  return mapped;
}

const Json& SchemaReferences::target(const Json& reference) const {
  const auto& text = reference.get_ref<const std::string&>();
  const std::size_t name = text.rfind('/') + 1;
  return root_.at(text.substr(2, name - 3)).at(text.substr(name));
}

std::int64_t SchemaReferences::alternatives(const Json& schema) {
  if (const Json* reference = part_of(schema, "$ref")) {
    const std::string& text = reference->get_ref<const std::string&>();
    const auto [known, is_new] = alternatives_.try_emplace(text, -1);
    if (is_new) known->second = alternatives(target(*reference));
    return bounded_sum(1, known->second);
  }
  const Json* parts = choice_of(schema);
  const std::int64_t types = parts == nullptr ? types_of(schema) : 1;
  if (parts == nullptr) parts = part_of(schema, "allOf");
  std::int64_t sum = 1;
  if (parts != nullptr && parts->is_array()) {
    for (const Json& part : *parts) sum = bounded_sum(sum, alternatives(part));
  }
  return sum < 0 ? -1 : std::min(sum * types, kVeryMany);
}

// Of an allOf, whose parts' properties become those of one object. A reference's are written anew each time.
SchemaSize SchemaReferences::merged_size(const Json& parts) {
  SchemaSize sum;
  std::int64_t properties = 0;
  const auto add = [&](const Json& part) {
    const Json* at = &part;
    for (const Json* next = part_of(*at, "$ref"); next != nullptr; next = part_of(*at, "$ref"))
      at = &target(*next);
    if (const Json* named = part_of(*at, "properties"); named != nullptr && named->is_object())
      properties += std::ssize(*named);
    if (const Json* reference = part_of(part, "$ref")) {
      const auto [known, is_new] =
          sizes_.try_emplace(reference->get_ref<const std::string&>(), SchemaSize{-1, -1});
      if (is_new) known->second = size(*at);
      sum.add(known->second);
    } else {
      sum.add(size(part));
    }
  };
  for (const Json& part : parts) {
    const Json* choice = choice_of(part);
    if (choice == nullptr) {
      add(part);
    } else {
      for (const Json& alternative : *choice) add(alternative);
    }
  }
  sum.add({0, properties * properties});
  return sum;
}

SchemaSize SchemaReferences::size(const Json& schema) {
  const std::int64_t optional = optional_properties(schema);
  SchemaSize sum = {1, optional * optional};
  if (!schema.is_object()) return sum;
  for (const auto& [key, value] : schema.items()) {
    const bool is_list =
        value.is_array() && (key == "anyOf" || key == "oneOf" || key == "prefixItems" || key == "items");
    const bool is_named =
        value.is_object() && (key == "properties" || key == "$defs" || key == "definitions");
    if (key == "allOf" && value.is_array()) {
      sum.add(merged_size(value));
    } else if (is_list || is_named) {
      for (const Json& part : value) sum.add(size(part));
    } else if (value.is_object() && (key == "items" || key == "additionalProperties")) {
      sum.add(size(value));
    }
  }
  SchemaSize multiplied;
  multiplied.add(sum, types_of(schema));
  return multiplied;
}

}  // namespace kvant
