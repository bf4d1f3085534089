#include "eval/tasks/gsm8k.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/json_reader.h"
#include "chat/chat_history.h"

namespace kvant {
namespace {

// Qwen's own evaluations ask in this form.
constexpr const char* kInstruction =
    "\nPlease reason step by step, and put your final answer within \\boxed{}.";

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

// Returns all numbers of a text. A comma counts as part of a number if three digits follow.
std::vector<double> numbers_of(const std::string& text) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < text.size();) {
    if (!is_digit(text[i])) {
      ++i;
      continue;
    }
    std::string number;
    // A minus sign after a letter or a digit is a hyphen or a difference. A currency sign may follow the
    // minus sign.
    std::size_t before = i;
    // A point begins a number if neither a point nor a word ends before it.
    const auto ends_word = [&](std::size_t at) {
      return text[at] == '.' || std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (before > 0 && text[before - 1] == '.' && (before == 1 || !ends_word(before - 2)))
      number = "0.", --before;
    if (before > 0 && text[before - 1] == '$') --before;
    const bool has_minus = before > 0 && text[before - 1] == '-';
    if (has_minus && (before == 1 || std::isalnum(static_cast<unsigned char>(text[before - 2])) == 0))
      number = "-" + number;
    bool has_point = number.find('.') != std::string::npos;
    for (; i < text.size(); ++i) {
      const bool digit_follows = i + 1 < text.size() && is_digit(text[i + 1]);
      if (is_digit(text[i])) {
        number += text[i];
      } else if (text[i] == '.' && digit_follows && !has_point) {
        has_point = true;
        number += '.';
      } else if (text[i] != ',' || has_point || i + 3 >= text.size() || !digit_follows ||
                 !is_digit(text[i + 2]) || !is_digit(text[i + 3])) {
        break;
      }
    }
    numbers.push_back(std::strtod(number.c_str(), nullptr));
  }
  return numbers;
}

// Returns the content of the last \boxed{...}, with nested braces, or nothing without a complete one.
std::optional<std::string> boxed(const std::string& text) {
  const std::string mark = "\\boxed{";
  for (std::size_t at = text.rfind(mark); at != std::string::npos;
       at = at == 0 ? std::string::npos : text.rfind(mark, at - 1)) {
    int depth = 1;
    for (std::size_t i = at + mark.size(); i < text.size(); ++i) {
      depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
      if (depth == 0) return text.substr(at + mark.size(), i - at - mark.size());
    }
  }
  return std::nullopt;
}

// Removes what LaTeX writes inside of numbers: "\$1{,}000" and "1\,000" become "$1,000" and "1000".
std::string without_latex(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "\\,") == 0 || text.compare(i, 2, "\\!") == 0) {
      ++i;
    } else if (text[i] != '\\' && text[i] != '{' && text[i] != '}') {
      plain += text[i];
    }
  }
  return plain;
}

// Returns whether a sign of arithmetic stands between a number and a later number.
bool computes(const std::string& text) {
  bool after_number = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    after_number = after_number || is_digit(text[i]);
    std::size_t length = std::string_view("*+-/x").find(text[i]) != std::string_view::npos ? 1 : 0;
    for (const std::string_view word : {"times", "cdot", "div", "\u00d7"}) {
      if (text.compare(i, word.size(), word) == 0) length = word.size();
    }
    if (!after_number || length == 0) continue;
    const std::size_t next = text.find_first_not_of(" $(", i + length);
    if (next != std::string::npos && is_digit(text[next])) return true;
  }
  return false;
}

// Returns the number that an answer states. An answer may repeat the computation, as in "2 x 9 = 18" or in
// "18 = 2 x 9". The side after the last equals sign counts unless that side is the computation. Otherwise the
// first number counts.
std::optional<double> stated_number(const std::string& answer) {
  const std::size_t equals = answer.rfind('=');
  if (equals != std::string::npos) {
    const std::string side = answer.substr(equals);
    const auto numbers = numbers_of(side);
    if (!numbers.empty() && !computes(side)) return numbers.front();
  }
  const auto numbers = numbers_of(answer);
  return numbers.empty() ? std::nullopt : std::optional(numbers.front());
}

// Returns the number after the last "####". An answer in this form ends with its line, unless the line has no
// number.
std::optional<double> marked_answer(const std::string& text) {
  const std::size_t mark = text.rfind("####");
  if (mark == std::string::npos) return std::nullopt;
  if (const auto number = stated_number(text.substr(mark, text.find('\n', mark) - mark))) return number;
  const auto numbers = numbers_of(text.substr(mark));
  return numbers.empty() ? std::nullopt : std::optional(numbers.front());
}

}  // namespace

std::optional<double> final_number(const std::string& completion) {
  if (const auto content = boxed(completion)) {
    if (const auto number = stated_number(without_latex(*content))) return number;
  }
  if (const auto answer = marked_answer(completion)) return answer;
  const auto numbers = numbers_of(completion);
  return numbers.empty() ? std::nullopt : std::optional(numbers.back());
}

Result<Task> make_gsm8k(const ChatTemplate& chat_template, const std::string& text, int most,
                        int max_tokens) {
  const auto records = parse_json_lines(text, "gsm8k", most);
  if (!records.ok()) return records.error();
  Task task{.name = "gsm8k"};
  for (const auto& record : *records) {
    const std::string id = std::to_string(task.problems.size());
    const auto question = text_member(record, "question"), answer = text_member(record, "answer");
    const auto right = answer ? marked_answer(*answer) : std::nullopt;
    if (!question || !right)
      return error("problem {} of gsm8k lacks a \"question\" or an \"answer\" with '#### NUMBER'", id);
    ChatHistory history;
    history.add("user", *question + kInstruction);
    auto prompt = chat_prompt(chat_template, history, {.max_tokens = max_tokens});
    if (!prompt.ok()) return prompt.error();
    task.problems.push_back({id, std::move(prompt).value(), [right = *right](const std::string& completion) {
                               const auto number = final_number(completion);
                               return TaskScore{.is_right = number && std::abs(*number - right) < 1e-6};
                             }});
  }
  return task;
}

}  // namespace kvant
