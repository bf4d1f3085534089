// The tools that a chat offers to the model.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvant {

struct ChatTools {
  enum class Choice { automatic, required, none };
  nlohmann::ordered_json functions = nlohmann::ordered_json::array();  // as the OpenAI API has them
  // These schemas are what a grammar can hold arguments to; the prompt shows the schemas above.
  // Empty: the schemas above are such.
  nlohmann::ordered_json held = nlohmann::ordered_json::array();
  Choice choice = Choice::automatic;
  std::vector<std::string> loosened;  // sentences: what arguments are not held to in the schemas
  std::string only;                   // required: this one; empty: any
  std::optional<bool> parallel;       // several calls in an answer; not said: as the template has it

  bool may_be_called() const { return !functions.empty() && choice != Choice::none; }
};

}  // namespace kvant
