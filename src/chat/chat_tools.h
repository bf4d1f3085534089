// The tools that a chat offers to the model.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace kvant {

struct ChatTools {
  enum class Choice { automatic, required, none };
  nlohmann::ordered_json functions = nlohmann::ordered_json::array();  // as the OpenAI API has them
  Choice choice = Choice::automatic;
  std::string only;              // required: this one; empty: any
  std::optional<bool> parallel;  // several calls in an answer; not said: as the template has it

  bool may_be_called() const { return !functions.empty() && choice != Choice::none; }
};

}  // namespace kvant
