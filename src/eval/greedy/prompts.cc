#include "eval/greedy/prompts.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "base/json_reader.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

bool is_blank(const std::string& line) {
  return std::all_of(line.begin(), line.end(), [](unsigned char c) { return std::isspace(c) != 0; });
}

Result<std::string> prompt_of(const std::string& line, int number) {
  if (line.front() != '{') return line;
  const auto object = parse_json(line);
  if (!object.ok()) return error("line {} of the prompts is {}", number, object.error().message);
  for (const char* key : {"prompt", "question"}) {
    if (auto prompt = text_member(*object, key)) return *prompt;
  }
  return error("line {} of the prompts is no JSON object with a \"prompt\" or a \"question\"", number);
}

}  // namespace

Result<std::vector<std::string>> parse_prompts(const std::string& text) {
  std::vector<std::string> prompts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (is_blank(line)) continue;
    auto prompt = prompt_of(line, number);
    if (!prompt.ok()) return prompt.error();
    prompts.push_back(std::move(prompt).value());
  }
  if (prompts.empty()) return error("there are no prompts: give a file with one prompt a line");
  return prompts;
}

Result<std::vector<std::int32_t>> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  const ChatMessage message{"user", prompt};
  const auto templated = tokenizer.chat_prompt({&message, 1});
  if (!templated.ok()) return tokenizer.encode(prompt, /*add_special=*/true, /*parse_special=*/false);
  return tokenizer.encode(*templated, /*add_special=*/true, /*parse_special=*/true);
}

}  // namespace kvant
