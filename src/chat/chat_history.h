// The messages of a chat so far.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chat/thinking_switch.h"
#include "model/tokenizer.h"

namespace kvant {

struct ChatHistory {
  std::vector<ChatMessage> messages;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();  // the same, as the API has them
  bool calls_tools = false;  // some are calls or what they gave, which `messages` can't say
  nlohmann::ordered_json template_values = nlohmann::ordered_json::object();  // that the template may ask for

  ThinkingOptions thinking;

  void add(const std::string& role, const std::string& text);
};

}  // namespace kvant
