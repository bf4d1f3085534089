// Translates a request's wish about how much a model should think into the variables of a chat template. Each
// family of models has its own names for these variables. The names in a template's source show which
// variables apply.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "chat/template_words.h"

namespace kvant {

struct ThinkingWish {
  std::optional<bool> thinks = {};
  bool is_adaptive = false;              // the model decides itself
  std::string effort = {};               // one of none, minimal, low, medium, high, xhigh and max; empty if
                                         // unset
  std::optional<int> token_budget = {};  // tokens; the limit for the thoughts

  bool empty() const { return !thinks && effort.empty() && !token_budget; }
};

// ThinkingOptions are a request's options about thoughts.
struct ThinkingOptions {
  ThinkingWish wish = {};
  bool splits_thoughts = true;  // if false, thoughts stay in the text with their tags
  bool may_think = true;        // if false, a format restricts the completion from its first token on
};

// Returns whether `effort` is the name of a thinking effort.
bool is_thinking_effort(const std::string& effort);

// Adds the wish to the template's values, under the names that the template reads. Examples are
// `enable_thinking` (Qwen 3, GLM, Gemma 4), `thinking` (Granite, DeepSeek), `thinking_mode`,
// `thinking_budget` and `reasoning_effort` (gpt-oss). Existing values stay, and an existing switch, such as
// `enable_thinking`, counts as a wish. If the template does not know an effort, the next lower effort
// replaces it. Returns false if the template cannot express the wish. The model then thinks as it does
// without a wish.
bool set_thinking(ThinkingWish wish, const TemplateWords& words, nlohmann::ordered_json& values);

}  // namespace kvant
