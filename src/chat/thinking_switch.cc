#include "chat/thinking_switch.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};
constexpr std::array<const char*, 3> kEffortNames = {"reasoning_effort", "reasoning_strength",
                                                     "thinking_effort"};
constexpr std::array<const char*, 3> kSwitchNames = {"enable_thinking", "thinking", "reasoning"};
constexpr const char* kNoThought = "no_think";  // some templates have this name for the lowest effort

bool has(const std::set<std::string>& words, std::string_view word) {
  return words.contains(std::string(word));
}

// Returns `effort` if the template knows this name, or else the next lower effort that the template knows. An
// empty result means that the template's default is nearest. A template that names at least two efforts is
// assumed to know no others.
std::string known_effort(const std::string& effort, const TemplateWords& words) {
  if (has(words.literals, effort)) return effort;
  const auto names = std::ranges::count_if(kEfforts, [&](auto name) { return has(words.literals, name); });
  const auto wanted = std::ranges::find(kEfforts, effort) - kEfforts.begin();
  if (names >= 2) {
    for (auto i = wanted - 1; i > 0; --i) {
      if (has(words.literals, kEfforts[i])) return std::string(kEfforts[i]);
    }
    return has(words.literals, "low") ? "low" : "";
  }
  if (effort == "none" || effort == "minimal") return "low";
  return effort == "xhigh" || effort == "max" ? "high" : effort;
}

void set_missing(const char* name, Json value, Json& values) {
  if (!values.contains(name)) values[name] = std::move(value);
}

// Reads the wish that the client already expresses by its values for the template.
void read_values(const Json& values, ThinkingWish& wish) {
  for (const char* name : kSwitchNames) {
    if (values.contains(name) && values[name].is_boolean()) wish.thinks = values[name].get<bool>();
  }
}

// Sets the variables that turn thoughts on and off. Returns whether the template has any.
bool set_switches(const ThinkingWish& wish, bool thinks, const TemplateWords& words, Json& values) {
  bool has_switch = false;
  for (const char* name : kSwitchNames) {
    if (!has(words.variables, name)) continue;
    set_missing(name, thinks, values);
    has_switch = true;
  }
  if (has(words.variables, "thinking_mode")) {
    set_missing("thinking_mode", wish.is_adaptive ? "adaptive" : thinks ? "enabled" : "disabled", values);
    has_switch = true;
  }
  if (has(words.variables, "thinking_budget")) {
    if (!thinks || wish.token_budget) set_missing("thinking_budget", thinks ? *wish.token_budget : 0, values);
    has_switch = true;
  }
  return has_switch;
}

// Sets the variables for the effort. Returns whether the template has any.
bool set_efforts(const ThinkingWish& wish, bool is_off, bool has_switch, const TemplateWords& words,
                 Json& values) {
  bool has_efforts = false;
  for (const char* name : kEffortNames) {
    if (!has(words.variables, name)) continue;
    has_efforts = true;
    std::string effort;
    if (is_off && has(words.literals, kNoThought)) {
      effort = kNoThought;
    } else if (is_off && (has(words.literals, "none") || !has_switch)) {
      effort = known_effort("none", words);
    } else if (!is_off && !wish.effort.empty()) {
      effort = known_effort(wish.effort, words);
    }
    if (!effort.empty()) set_missing(name, effort, values);
  }
  return has_efforts;
}

}  // namespace

bool is_thinking_effort(const std::string& effort) {
  return std::ranges::find(kEfforts, effort) != kEfforts.end();
}

bool set_thinking(ThinkingWish wish, const TemplateWords& words, Json& values) {
  read_values(values, wish);
  if (wish.empty()) return true;
  const bool has_efforts =
      std::ranges::any_of(kEffortNames, [&](auto name) { return has(words.variables, name); });
  const bool is_least = wish.effort == "none" || (wish.effort == "minimal" && !has_efforts);
  const bool thinks = wish.thinks.value_or(!is_least);
  const bool has_switch = set_switches(wish, thinks, words, values);
  return set_efforts(wish, !thinks, has_switch, words, values) || has_switch;
}

}  // namespace kvant
