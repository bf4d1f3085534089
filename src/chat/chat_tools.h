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
  // Schemas that a grammar can enforce; the prompt shows the schemas above. Empty: the schemas above can be
  // enforced.
  nlohmann::ordered_json held = nlohmann::ordered_json::array();
  Choice choice = Choice::automatic;
  std::vector<std::string> loosened;  // sentences: which parts of the schemas are not enforced
  std::string only;                   // the tool that is required; empty: any
  std::optional<bool> parallel;  // whether an answer may have several calls; unset: as the template decides

  bool may_be_called() const { return !functions.empty() && choice != Choice::none; }
};

}  // namespace kvant
