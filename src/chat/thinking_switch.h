// How much a model is to think before it answers: how requests express it and how chat templates take it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "chat/template_words.h"

namespace kvant {

struct ThinkingWish {
  std::optional<bool> thinks = {};
  bool is_adaptive = false;              // the model decides
  std::string effort = {};               // none, minimal, low, medium, high, xhigh or max; empty: unset
  std::optional<int> token_budget = {};  // limit for the thoughts

  bool empty() const { return !thinks && effort.empty() && !token_budget; }
};

// The thinking options of a request.
struct ThinkingOptions {
  ThinkingWish wish = {};
  bool splits_thoughts = true;  // if false, thoughts stay in the text with their tags
  bool may_think = true;        // if false, a format constrains the completion from its first token on
};

// Returns whether there is an effort of that name.
bool is_thinking_effort(const std::string& effort);

// Adds the wish to the values for a template, under the names that this template has: `enable_thinking` (Qwen
// 3, GLM, Gemma 4), `thinking` (Granite, DeepSeek), `thinking_mode`, `thinking_budget`, `reasoning_effort`
// (gpt-oss) and the like. Existing values are kept, and an existing `enable_thinking` counts as a wish. An
// effort that the template doesn't have is replaced by the next lower one. Returns whether the template has a
// switch for the wish; without one, the model thinks as it always does.
bool set_thinking(ThinkingWish wish, const TemplateWords& words, nlohmann::ordered_json& values);

}  // namespace kvant
