#include "chat/chat_text.h"

#include <algorithm>
#include <optional>

#include "chat/message_shape.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBlank = " \t\n\r\f\v";

// UnusedDigits makes strings of digits that do not occur in the conversation. The digits serve as marks,
// because templates copy digits unchanged.
class UnusedDigits {
 public:
  explicit UnusedDigits(const Json& conversation)
      : used_(conversation.dump(-1, ' ', false, Json::error_handler_t::replace)) {}

  std::string next() {
    std::string digits;
    do {
      digits = std::to_string(number_++);
    } while (used_.find(digits) != std::string::npos);
    return digits;
  }

 private:
  std::string used_;
  std::uint64_t number_ = 7'318'530'962'541'086'392;
};

bool is_inside_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// Inserts the mark after the first character of each control token in a text. The tokenizer then no longer
// recognizes the token there.
std::string break_tokens(const std::string& text, const ControlTokens& control, const std::string& mark) {
  std::string broken;
  bool is_due = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_due && !is_inside_character(text[i])) {
      broken += mark;
      is_due = false;
    }
    is_due = is_due || control.at(text, i).length > 0;
    broken += text[i];
  }
  return broken;
}

void break_all(Json& json, const ControlTokens& control, const std::string& mark) {
  if (json.is_string()) {
    json = break_tokens(json.get<std::string>(), control, mark);
  } else if (json.is_array()) {
    for (Json& item : json) break_all(item, control, mark);
  } else if (json.is_object()) {
    Json broken = Json::object();
    for (auto& [key, value] : json.items()) {
      break_all(value, control, mark);
      broken[break_tokens(key, control, mark)] = std::move(value);
    }
    json = std::move(broken);
  }
}

// Breaks the tokens in a message's texts. The server chooses the names of a message's members and checks its
// role, so both stay whole.
void break_message(Json& message, const ControlTokens& control, const std::string& mark) {
  for (auto& [key, value] : message.items())
    if (key != "role") break_all(value, control, mark);
}

// Removes the marks from a rendered text. A control token that a mark had broken is recorded as quoted.
ChatText take_marks_out(const std::string& marked, const std::string& mark) {
  ChatText chat;
  std::size_t start = 0;
  for (std::size_t at; (at = marked.find(mark, start)) != std::string::npos; start = at + mark.size()) {
    chat.text.append(marked, start, at - start);
    std::size_t first = chat.text.size() - 1;
    while (first > 0 && is_inside_character(chat.text[first])) --first;
    chat.quoted.push_back(first);
  }
  chat.text.append(marked, start);
  return chat;
}

// TemplateInput holds a conversation and renders it through the template.
class TemplateInput {
 public:
  TemplateInput(const TemplateProgram& program, const Json& messages, const Json& tools, const Json& values)
      : program_(program),
        messages_(messages),
        tools_(tools),
        values_(values),
        marks_(Json::array({messages, tools, values})),
        end_mark_(marks_.next()) {}

  std::string new_mark() { return marks_.next(); }
  Json& messages() { return messages_; }
  Json& tools() { return tools_; }

  Result<std::string> render() const {
    if (!continues(messages_)) return run(messages_, /*begin_turn=*/true);
    Json marked = messages_;
    Json& last = marked.back();
    const std::string continued =
        text_of(last, "content").empty() && !text_of(last, "reasoning_content").empty() ? "reasoning_content"
                                                                                        : "content";
    last[continued] = text_of(last, continued) + end_mark_ + " ";
    auto text = run(marked, /*begin_turn=*/false);
    if (!text.ok()) return text;
    if (cut(*text)) return text;
    // The template left the unfinished message out, so the message begins a new turn of the assistant.
    marked.erase(marked.size() - 1);
    text = run(marked, /*begin_turn=*/true);
    if (!text.ok()) return text;
    return *text + text_of(messages_.back(), "content");
  }

 private:
  static std::string text_of(const Json& message, const std::string& key) {
    const auto found = message.find(key);
    return found != message.end() && found->is_string() ? found->get<std::string>() : "";
  }

  // Cuts the text at the mark that ends the continued message. A space follows the mark, so a missing space
  // shows that the template trims messages.
  bool cut(std::string& text) const {
    const std::size_t at = text.rfind(end_mark_);
    if (at == std::string::npos) return false;
    const bool is_trimmed = !text.substr(at + end_mark_.size()).starts_with(' ');
    text.resize(at);
    if (is_trimmed) text.resize(text.find_last_not_of(kBlank) + 1);
    return true;
  }

  Result<std::string> run(const Json& messages, bool begin_turn) const {
    Json variables = {{"messages", shape_messages(messages, program_)},
                      {"tools", tools_.empty() ? Json() : tools_},
                      {"documents", nullptr},
                      {"add_generation_prompt", begin_turn}};
    variables.update(values_);
    auto text = program_.render(variables);
    if (text.ok() || !variables["tools"].is_null()) return text;
    // Templates that are made only for chats with tools iterate over the tools even if `tools` is null, which
    // fails. An undefined variable works.
    variables.erase("tools");
    auto without = program_.render(variables);
    return without.ok() ? without : text;
  }

  const TemplateProgram& program_;
  Json messages_, tools_;
  const Json& values_;
  UnusedDigits marks_;
  std::string end_mark_;
};

// Renders the conversation and records the control tokens that its messages quote. `assistant` says whether
// the assistant's messages are included.
std::optional<ChatText> render_marked(TemplateInput conversation, const ControlTokens& control,
                                      bool assistant) {
  const std::string mark = conversation.new_mark();
  for (Json& message : conversation.messages()) {
    if (assistant || message["role"] != "assistant") break_message(message, control, mark);
  }
  break_all(conversation.tools(), control, mark);
  const auto text = conversation.render();
  if (!text.ok()) return std::nullopt;
  return take_marks_out(*text, mark);
}

// PieceEncoder collects the tokens of a text that is encoded in pieces.
class PieceEncoder {
 public:
  explicit PieceEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Status add(const std::string& text, bool parse_special) {
    if (text.empty()) return {};
    const auto tokens = tokenizer_.encode(text, /*add_special=*/false, parse_special);
    if (!tokens.ok()) return tokens.error();
    tokens_.insert(tokens_.end(), tokens->begin(), tokens->end());
    return {};
  }
  std::vector<std::int32_t> take() { return std::move(tokens_); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> tokens_;
};

struct Fragment {
  std::size_t begin = 0, end = 0;
  bool quotes = false;  // the fragment has control tokens that count as text
};

}  // namespace

bool continues(const Json& messages) {
  return !messages.empty() && messages.back()["role"] == "assistant" &&
         !messages.back().contains("tool_calls");
}

// Templates may inspect messages, and broken control tokens may change a template's decisions. In that case,
// the assistant's messages keep their control tokens, which templates search for (such as the end of a
// thought). If the text still differs, the rendering with all tokens broken counts, because no message may
// forge a turn.
Result<ChatText> write_chat(const TemplateProgram& program, const ControlTokens& control,
                            const Json& given_messages, const Json& tools, const Json& values) {
  // In a call's arguments as a JSON text, escapes can hide control tokens, which the template would write.
  const Json messages = read_arguments(given_messages, program);
  const TemplateInput conversation(program, messages, tools, values);
  auto text = conversation.render();
  if (!text.ok()) return text.error();
  const std::string all = Json::array({messages, tools}).dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!control.occur_in(all)) return ChatText{std::move(text).value(), {}};
  const auto marked = render_marked(conversation, control, /*assistant=*/true);
  if (marked && marked->text == *text) return *marked;
  const auto others = render_marked(conversation, control, /*assistant=*/false);
  if (others && others->text == *text) return *others;
  if (marked) return *marked;
  return error("the chat template can't be filled in: it needs a control token in a message's text");
}

Result<std::vector<std::int32_t>> encode_chat(const Tokenizer& tokenizer, const ControlTokens& control,
                                              const ChatText& chat, std::size_t from) {
  PieceEncoder pieces(tokenizer);
  const std::string& text = chat.text;
  std::size_t written = from;  // the end of the pieces that are already encoded
  Fragment fragment{from, from};
  bool strips_right = false;  // the token before the fragment strips white space on its right
  const auto close = [&](bool strips_left) -> Status {
    if (!fragment.quotes) return {};
    KVANT_RETURN_IF_ERROR(pieces.add(text.substr(written, fragment.begin - written), /*parse_special=*/true));
    std::string plain = text.substr(fragment.begin, fragment.end - fragment.begin);
    if (strips_left) plain.resize(plain.find_last_not_of(kBlank) + 1);
    if (strips_right) plain.erase(0, std::min(plain.find_first_not_of(kBlank), plain.size()));
    written = fragment.end;
    return pieces.add(plain, /*parse_special=*/false);
  };
  for (std::size_t i = from; i < text.size();) {
    const ControlTokens::Match match = control.at(text, i);
    const bool is_quoted = match.length > 0 && std::ranges::binary_search(chat.quoted, i);
    if (match.length == 0 || is_quoted) {
      fragment.quotes = fragment.quotes || is_quoted;
      fragment.end = ++i;
      continue;
    }
    KVANT_RETURN_IF_ERROR(close(match.token.strips_left));
    i += match.length;
    fragment = {i, i};
    strips_right = match.token.strips_right;
  }
  KVANT_RETURN_IF_ERROR(close(/*strips_left=*/false));
  KVANT_RETURN_IF_ERROR(pieces.add(text.substr(written), /*parse_special=*/true));
  return pieces.take();
}

}  // namespace kvant
