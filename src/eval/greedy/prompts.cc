#include "eval/greedy/prompts.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "base/json_reader.h"
#include "chat/chat_history.h"
#include "chat/chat_template.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

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
  return error("line {} of the prompts is not a JSON object with a \"prompt\" or a \"question\"", number);
}

Result<std::vector<std::int32_t>> encode_message(const ChatTemplate& chat_template,
                                                 const std::string& message) {
  ChatHistory history;
  history.add("user", message);
  const auto chat = chat_template.write(history.json);
  if (!chat.ok()) return chat.error();
  return chat_template.encode(*chat);
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

Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const Tokenizer& tokenizer,
                                                              const std::vector<std::string>& prompts) {
  std::shared_ptr<const ChatTemplate> chat_template;
  if (ChatTemplate::is_in(tokenizer)) {
    auto opened = ChatTemplate::open(tokenizer, "");
    if (!opened.ok()) return opened.error();
    chat_template = std::move(opened).value();
  }
  std::vector<std::vector<std::int32_t>> encoded;
  for (const std::string& prompt : prompts) {
    KVANT_RETURN_IF_ERROR(check_message_text("a prompt", prompt));
    auto tokens = chat_template == nullptr
                      ? tokenizer.encode(prompt, /*add_special=*/true, /*parse_special=*/false)
                      : encode_message(*chat_template, prompt);
    if (!tokens.ok()) return tokens.error();
    encoded.push_back(std::move(tokens).value());
  }
  return encoded;
}

}  // namespace kvant
