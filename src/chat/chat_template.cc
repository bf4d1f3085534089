#include "chat/chat_template.h"

#include <chat.h>

#include <algorithm>
#include <exception>

#include "chat/call_grammar.h"
#include "chat/library_completion_parser.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

class LibraryTemplate : public ChatTemplate {
 public:
  LibraryTemplate(const Tokenizer& tokenizer, common_chat_templates_ptr templates, bool replaces)
      : tokenizer_(tokenizer),
        templates_(std::move(templates)),
        words_(template_words(common_chat_templates_source(templates_.get()))),
        replaces_(replaces) {}

  bool is_there() const override { return common_chat_templates_was_explicit(templates_.get()); }
  bool replaces_the_models() const override { return replaces_; }

  bool has_tools() const override { return can("supports_tools") && can("supports_tool_calls"); }

  Result<TemplatedChat> apply(const Json& messages, const ChatTools& tools, const Json& given_values,
                              const ThinkingOptions& thinking) const override {
    try {
      common_chat_templates_inputs inputs;
      Json values = given_values;
      set_thinking(thinking.wish, words_, values);
      for (const auto& [name, value] : values.items()) inputs.chat_template_kwargs[name] = value.dump();
      inputs.enable_thinking = values.value("enable_thinking", true);  // the library asks for it by itself
      inputs.reasoning_format =
          thinking.splits_thoughts ? COMMON_REASONING_FORMAT_AUTO : COMMON_REASONING_FORMAT_NONE;
      inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(messages.dump()));
      inputs.tools = functions(tools.functions, "");
      inputs.tool_choice =
          tools.may_be_called() ? COMMON_CHAT_TOOL_CHOICE_AUTO : COMMON_CHAT_TOOL_CHOICE_NONE;
      inputs.parallel_tool_calls = tools.parallel.value_or(can("supports_parallel_tool_calls"));
      common_chat_params params = common_chat_templates_apply(templates_.get(), inputs);
      TemplatedChat chat{.prompt = params.prompt, .stops = params.additional_stops};
      CompletionReading reading{.splits_thoughts = thinking.splits_thoughts,
                                .one_call = tools.parallel == false};
      if (!tools.may_be_called()) {
        chat.format = read_by_library(params, reading);
        return chat;
      }
      if (!tools.only.empty()) {
        inputs.tools = functions(tools.functions, tools.only);
        params = common_chat_templates_apply(templates_.get(), inputs);
      }
      if (tools.choice == ChatTools::Choice::required) {
        const common_chat_params optional = std::move(params);
        inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        params = common_chat_templates_apply(templates_.get(), inputs);
        CallGrammar grammar = required_call_grammar(params, optional, thinking.splits_thoughts);
        chat.grammar = {.gbnf = std::move(grammar.gbnf)};
        chat.grammar_start = std::move(grammar.start);
      } else {
        chat.grammar = waiting_rules(params);
        reading.untagged_functions = tools.functions;
        // A template whose calls have no mark: the library would take any bracket for a call.
        inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
        if (params.grammar.empty()) params = common_chat_templates_apply(templates_.get(), inputs);
      }
      chat.format = read_by_library(params, reading);
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
    rules.trigger.thought = {params.thinking_start_tag, params.thinking_end_tags, ends_in_thought(params)};
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
  TemplateWords words_;
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
