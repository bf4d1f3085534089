#include "serve/thinking_fields.h"

#include <fmt/format.h>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

void read_named_effort(JsonFields& fields, const char* key, const std::string& name, ThinkingWish& wish) {
  const auto effort = fields.text(key);
  if (!effort) return;
  wish.effort = *effort;
  if (!is_thinking_effort(*effort))
    fields.fail(key, fmt::format("'{}' must be none, minimal, low, medium, high, xhigh or max", name));
}

std::optional<int> read_budget(JsonFields& fields, const char* key) {
  const auto budget = fields.integer(key, 0, INT32_MAX);
  return budget ? std::optional(static_cast<int>(*budget)) : std::nullopt;
}

// Reads the member `thinking`, which is {"type": "enabled" | "disabled" | "adaptive", "budget_tokens"}, true,
// or false.
void read_thinking(const Json& json, JsonFields& fields, ThinkingWish& wish) {
  if (json.is_boolean()) {
    wish.thinks = json.get<bool>();
    return;
  }
  JsonFields thinking(json, "thinking");
  const std::string type =
      thinking.word("type", {"enabled", "disabled", "adaptive", "auto"}, JsonFields::Missing::is_wrong);
  wish.thinks = type != "disabled";
  wish.is_adaptive = type == "adaptive" || type == "auto";
  wish.token_budget = read_budget(thinking, "budget_tokens");
  fields.fail(thinking.error());
}

void read_reasoning_object(const Json& json, JsonFields& fields, ThinkingWish& wish) {
  JsonFields reasoning(json, "reasoning");
  read_named_effort(reasoning, "effort", "reasoning.effort", wish);
  if (const auto enabled = reasoning.boolean("enabled")) wish.thinks = *enabled;
  if (const auto budget = read_budget(reasoning, "max_tokens")) wish.token_budget = budget;
  fields.fail(reasoning.error());
}

}  // namespace

ThinkingOptions read_chat_thinking(JsonFields& fields) {
  ThinkingOptions read;
  if (const Json* reasoning = fields.value("reasoning")) read_reasoning_object(*reasoning, fields, read.wish);
  read_named_effort(fields, "reasoning_effort", "reasoning_effort", read.wish);
  if (const Json* thinking = fields.value("thinking")) read_thinking(*thinking, fields, read.wish);
  if (const auto enabled = fields.boolean("enable_thinking")) read.wish.thinks = *enabled;
  read.splits_thoughts =
      fields.word("reasoning_format", {"auto", "deepseek", "none"}, JsonFields::Missing::is_first) != "none";
  return read;
}

ThinkingOptions read_messages_thinking(JsonFields& fields) {
  ThinkingOptions read;
  if (const Json* thinking = fields.value("thinking")) read_thinking(*thinking, fields, read.wish);
  if (const Json* json = fields.value("output_config")) {
    JsonFields output(*json, "output_config");
    read_named_effort(output, "effort", "output_config.effort", read.wish);
    fields.fail(output.error());
  }
  return read;
}

}  // namespace kvant
