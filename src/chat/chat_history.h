// Holds the messages of a chat so far, and what a request says about rendering them. Each API of the server
// fills in a ChatHistory, which the chat template then renders.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "chat/thinking_switch.h"

namespace kvant {

struct ChatHistory {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  bool calls_tools = false;  // some messages are tool calls or their results
  // The client may set further variables of the template, by name.
  nlohmann::ordered_json template_values = nlohmann::ordered_json::object();

  ThinkingOptions thinking;

  void add(const std::string& role, const std::string& text);
};

}  // namespace kvant
