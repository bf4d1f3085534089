// The messages of a chat so far.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "chat/thinking_switch.h"

namespace kvant {

struct ChatHistory {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();  // messages, as the OpenAI API has them
  bool calls_tools = false;  // some messages are tool calls or their results
  // variables that the template may ask for
  nlohmann::ordered_json template_values = nlohmann::ordered_json::object();

  ThinkingOptions thinking;

  void add(const std::string& role, const std::string& text);
};

}  // namespace kvant
