// Reads a list of conversations as JSON from standard input, and writes the list of their prompts. A test
// compares the prompts with the prompts of another template engine. A conversation has "template" (a file),
// "bos", "eos", "control" (texts of control tokens), "messages", "tools" and "values".
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chat/chat_text.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

Result<std::shared_ptr<const TemplateProgram>> open(const Json& item) {
  std::ifstream file(item["template"].get<std::string>());
  std::ostringstream source;
  source << file.rdbuf();
  return TemplateProgram::parse(source.str(), "the template", item["bos"], item["eos"]);
}

Json prompt_of(const Json& item) {
  static std::map<std::string, std::shared_ptr<const TemplateProgram>> programs;
  auto& program = programs[item["template"]];
  if (program == nullptr) {
    auto opened = open(item);
    if (!opened.ok()) return {{"error", opened.error().message}};
    program = *opened;
  }
  ControlTokens control;
  for (const Json& text : item["control"]) control.add(text, {});
  const auto chat = write_chat(*program, control, item["messages"], item["tools"], item["values"]);
  if (!chat.ok()) return {{"error", chat.error().message}};
  return {{"prompt", chat->text}, {"quoted", chat->quoted}};
}

}  // namespace
}  // namespace kvant

int main() {
  nlohmann::ordered_json prompts = nlohmann::ordered_json::array();
  for (const auto& item : nlohmann::ordered_json::parse(std::cin)) prompts.push_back(kvant::prompt_of(item));
  std::cout << prompts.dump() << "\n";
}
