// ChatTools describes the tools that a chat offers to the model. Every API of the server fills in the same
// structure, from which the template, the grammar and the parser are made.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvant {

struct ChatTools {
  enum class Choice { automatic, required, none };
  // `functions` lists the tools of the client in the format of the OpenAI API. The prompt shows this list.
  nlohmann::ordered_json functions = nlohmann::ordered_json::array();
  // `held` has a tool for each of `functions`, with a schema that a grammar can enforce. `held` is empty
  // if the schemas in `functions` can be enforced.
  nlohmann::ordered_json held = nlohmann::ordered_json::array();
  Choice choice = Choice::automatic;
  std::vector<std::string> loosened;  // one sentence for each part of a schema that the grammar does not
                                      // enforce
  std::string only;                   // the tool that the model must call; empty if the model may choose
  std::optional<bool> parallel;       // whether a completion may have several calls; if unset, the template
                                      // decides

  bool may_be_called() const { return !functions.empty() && choice != Choice::none; }
};

}  // namespace kvant
