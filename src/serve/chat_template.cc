#include "serve/chat_template.h"

#include <chat.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <random>
#include <string_view>

#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

std::string new_call_id() {
  std::random_device random;
  return fmt::format("call_{:08x}{:08x}{:08x}", random(), random(), random());
}

// The same with U+FFFD for bytes that are not UTF-8, as clients see them: the library stops at such.
std::string readable(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

// How deep brackets outside of strings are nested, so far. What is a string depends on where a call begins,
// which is not known: a quotation mark before it, in a text, turns it round. So brackets are counted both
// ways; the other way round up to a higher limit, as those within strings need not be closed.
class BracketDepth {
 public:
  void add(const std::string& text) {
    for (const char c : text) {
      if (after_backslash_) {
        after_backslash_ = false;
      } else if (c == '\\') {
        after_backslash_ = true;
      } else if (c == '"') {
        in_string_ = !in_string_;
      } else if (c == '[' || c == '{') {
        const int depth = ++depth_[in_string_ ? 1 : 0];
        is_too_deep_ = is_too_deep_ || depth > (in_string_ ? kMaxDepthInText : kMaxJsonDepth);
      } else if ((c == ']' || c == '}') && depth_[in_string_ ? 1 : 0] > 0) {
        --depth_[in_string_ ? 1 : 0];
      }
    }
  }
  bool is_too_deep() const { return is_too_deep_; }

 private:
  static constexpr int kMaxDepthInText = 512;

  std::array<int, 2> depth_{};  // outside of strings; inside
  bool is_too_deep_ = false, in_string_ = false, after_backslash_ = false;
};

class LibraryAnswer : public ToolAnswer {
 public:
  LibraryAnswer(const common_chat_parser_params& format, bool one_call)
      : format_(format), one_call_(one_call) {}

  AnswerDelta add(const std::string& text) override {
    const std::string more = readable(text);
    text_ += more;
    if (is_too_deep()) return {.text = more};
    depth_.add(text);
    return is_too_deep() ? rest_as_text(more) : advance(/*is_partial=*/true);
  }

  // What is no call after all, or one that was cut, was text.
  AnswerDelta finish() override {
    if (is_too_deep()) return {};
    const std::size_t shown = message_.content.size();
    AnswerDelta rest = advance(/*is_partial=*/false);
    if (!has_calls() && text_.starts_with(message_.content)) rest.text = text_.substr(shown);
    return rest;
  }

  bool has_calls() const override { return !message_.tool_calls.empty(); }
  bool is_complete() const override { return one_call_ && message_.tool_calls.size() > 1; }

 private:
  // What reads calls, calls itself for each bracket.
  bool is_too_deep() const { return depth_.is_too_deep(); }

  AnswerDelta rest_as_text(const std::string& more) const {
    const bool begins_with_shown = !has_calls() && text_.starts_with(message_.content);
    return {.text = begins_with_shown ? text_.substr(message_.content.size()) : more};
  }

  AnswerDelta advance(bool is_partial) {
    AnswerDelta delta;
    try {
      common_chat_msg message = common_chat_parse(text_, is_partial, format_);
      message.set_tool_call_ids(ids_, new_call_id);
      for (const common_chat_msg_diff& diff : common_chat_msg_diff::compute_diffs(message_, message)) {
        delta.text += diff.content_delta;
        if (diff.tool_call_index == std::string::npos || (one_call_ && diff.tool_call_index > 0)) continue;
        const common_chat_tool_call& call = diff.tool_call_delta;
        delta.calls.push_back({static_cast<int>(diff.tool_call_index), call.name.empty() ? "" : call.id,
                               call.name, call.arguments});
      }
      message_ = std::move(message);
      failed_ = false;
    } catch (const std::exception&) {
      failed_ = true;  // so far it can't be read: more text may make it right
    }
    return delta;
  }

  const common_chat_parser_params& format_;
  bool one_call_;
  std::string text_;
  BracketDepth depth_;
  common_chat_msg message_;  // that it says so far
  std::vector<std::string> ids_;
  bool failed_ = false;
};

class LibraryFormat : public ToolFormat, public std::enable_shared_from_this<LibraryFormat> {
 public:
  LibraryFormat(const common_chat_params& params, bool one_call) : format_(params), one_call_(one_call) {
    if (!params.parser.empty()) format_.parser.load(params.parser);
  }

  std::unique_ptr<ToolAnswer> read() const override {
    struct Kept : LibraryAnswer {
      Kept(std::shared_ptr<const LibraryFormat> format)
          : LibraryAnswer(format->format_, format->one_call_), format_(std::move(format)) {}
      std::shared_ptr<const LibraryFormat> format_;
    };
    return std::make_unique<Kept>(shared_from_this());
  }

 private:
  common_chat_parser_params format_;
  bool one_call_;  // more are not told of: not all of the library's grammars keep answers from making them
};

// Of a grammar: the line of its first rule.
std::string root_of(const std::string& gbnf) {
  const std::size_t at = gbnf.starts_with("root ::=") ? 0 : gbnf.find("\nroot ::=") + 1;
  return gbnf.substr(at, gbnf.find('\n', at) - at);
}

// The library lets text of any length go before a call that is required. Where it would wait for a call's
// beginning if there need be none, the rules of that beginning are the root: then an answer starts with it.
void replace_root(std::string& gbnf, const std::string& root) {
  const std::string old = root_of(gbnf);
  gbnf.replace(gbnf.find(old), old.size(), root);
}

class LibraryTemplate : public ChatTemplate {
 public:
  LibraryTemplate(const Tokenizer& tokenizer, common_chat_templates_ptr templates, bool replaces)
      : tokenizer_(tokenizer), templates_(std::move(templates)), replaces_(replaces) {}

  bool is_there() const override { return common_chat_templates_was_explicit(templates_.get()); }
  bool replaces_the_models() const override { return replaces_; }

  bool has_tools() const override { return can("supports_tools") && can("supports_tool_calls"); }

  Result<TemplatedChat> apply(const Json& messages, const ChatTools& tools,
                              const Json& values) const override {
    try {
      common_chat_templates_inputs inputs;
      for (const auto& [name, value] : values.items()) inputs.chat_template_kwargs[name] = value.dump();
      inputs.enable_thinking = values.value("enable_thinking", true);  // the library asks for it by itself
      inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(messages.dump()));
      inputs.tools = functions(tools.functions, "");
      inputs.tool_choice =
          tools.may_be_called() ? COMMON_CHAT_TOOL_CHOICE_AUTO : COMMON_CHAT_TOOL_CHOICE_NONE;
      inputs.parallel_tool_calls = tools.parallel.value_or(can("supports_parallel_tool_calls"));
      common_chat_params params = common_chat_templates_apply(templates_.get(), inputs);
      TemplatedChat chat{.prompt = params.prompt, .stops = params.additional_stops};
      if (!tools.may_be_called()) return chat;
      if (!tools.only.empty()) {
        inputs.tools = functions(tools.functions, tools.only);
        params = common_chat_templates_apply(templates_.get(), inputs);
      }
      if (tools.choice == ChatTools::Choice::required) {
        const std::string begins_with_call = params.grammar_lazy ? root_of(params.grammar) : "";
        inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        params = common_chat_templates_apply(templates_.get(), inputs);
        chat.grammar = {.gbnf = params.grammar};
        if (begins_with_call.empty()) {
          chat.grammar_start = params.generation_prompt;
        } else {
          replace_root(chat.grammar.gbnf, begins_with_call);
        }
      } else {
        chat.grammar = waiting_rules(params);
      }
      chat.format = std::make_shared<LibraryFormat>(params, tools.parallel == false);
      return chat;
    } catch (const std::exception& e) {
      std::string why = e.what();
      std::ranges::replace(why, '\n', ' ');
      return error("the chat template can't be filled in with these messages: {}", why);
    }
  }

 private:
  bool can(const char* what) const { return common_chat_templates_get_caps(templates_.get()).at(what); }

  static std::vector<common_chat_tool> functions(const Json& tools, const std::string& only) {
    std::vector<common_chat_tool> all = common_chat_tools_parse_oaicompat(common_json::parse(tools.dump()));
    if (!only.empty()) std::erase_if(all, [&](const common_chat_tool& tool) { return tool.name != only; });
    return all;
  }

  // That hold where a call begins.
  GrammarRules waiting_rules(const common_chat_params& params) const {
    GrammarRules rules{.gbnf = params.grammar};
    for (const common_grammar_trigger& trigger : params.grammar_triggers) {
      switch (trigger.type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:
          rules.trigger.tokens.push_back(trigger.token);
          break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD:
          add_word(trigger.value, rules);
          break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:
          rules.trigger.patterns.push_back(trigger.value);
          break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL:
          rules.trigger.patterns.push_back("^(?:" + trigger.value + ")$");
          break;
      }
    }
    return rules;
  }

  // A word that is a token is found without looking through all of the text.
  void add_word(const std::string& word, GrammarRules& rules) const {
    const auto tokens = tokenizer_.encode(word, /*add_special=*/false, /*parse_special=*/true);
    if (tokens.ok() && tokens->size() == 1) {
      rules.trigger.tokens.push_back(tokens->front());
    } else {
      rules.trigger.words.push_back(word);
    }
  }

  const Tokenizer& tokenizer_;
  common_chat_templates_ptr templates_;
  bool replaces_;
};

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::make(const Tokenizer& tokenizer,
                                                               const std::string& source) {
  if (tokenizer.library_model() == nullptr) return error("there is no model whose chat template it is");
  try {
    return std::shared_ptr<const ChatTemplate>(std::make_shared<LibraryTemplate>(
        tokenizer, common_chat_templates_init(tokenizer.library_model(), source), !source.empty()));
  } catch (const std::exception& e) {
    return error("the chat template can't be read: {}", e.what());
  }
}

}  // namespace kvant
