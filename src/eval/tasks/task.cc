#include "eval/tasks/task.h"

#include <sstream>

#include "base/json_reader.h"

namespace kvant {

Result<std::vector<nlohmann::ordered_json>> parse_json_lines(const std::string& text, const std::string& name,
                                                             int most) {
  std::vector<nlohmann::ordered_json> objects;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; (most == 0 || std::ssize(objects) < most) && std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto object = parse_json(line);
    if (!object.ok()) return error("line {} of '{}' is {}", number, name, object.error().message);
    if (!object->is_object()) return error("line {} of '{}' is not a JSON object", number, name);
    objects.push_back(std::move(object).value());
  }
  if (objects.empty()) return error("'{}' has no problems: give a file with one JSON object a line", name);
  return objects;
}

Result<BatchPrompt> chat_prompt(const ChatTemplate& chat_template, const ChatHistory& history,
                                GenerationOptions options) {
  const auto written = chat_template.write(history.json);
  if (!written.ok()) return written.error();
  auto tokens = chat_template.encode(*written);
  if (!tokens.ok()) return tokens.error();
  options.hides_control_tokens = true;
  return BatchPrompt{std::move(tokens).value(), std::move(options)};
}

}  // namespace kvant
