#include "chat/chat_template.h"

#include <chat.h>
#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <exception>
#include <iterator>

#include "base/text_file.h"
#include "chat/call_grammar.h"
#include "chat/library_completion_parser.h"
#include "chat/untagged_calls.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// A model's file may have a second template for chats with tools.
struct Programs {
  std::shared_ptr<const TemplateProgram> chat, tools;  // `tools` is null if there is only one template

  const TemplateProgram& of(const ChatTools& offered) const {
    return tools != nullptr && !offered.functions.empty() ? *tools : *chat;
  }
};

class LibraryTemplate : public ChatTemplate {
 public:
  LibraryTemplate(const Tokenizer& tokenizer, Programs programs, common_chat_templates_ptr templates)
      : tokenizer_(tokenizer),
        vocabulary_(llama_model_get_vocab(tokenizer.library_model())),
        control_(vocabulary_),
        programs_(std::move(programs)),
        templates_(std::move(templates)),
        words_(template_words(programs_.chat->source())) {}

  bool has_tools() const override { return can("supports_tools") && can("supports_tool_calls"); }

  Result<ChatText> write(const Json& messages) const override {
    return write_chat(*programs_.chat, control_, messages, /*tools=*/nullptr, Json::object());
  }

  Result<std::vector<std::int32_t>> encode(const ChatText& chat, std::size_t from) const override {
    auto tokens = encode_chat(tokenizer_, control_, chat, from);
    if (!tokens.ok() || from > 0 || !llama_vocab_get_add_bos(vocabulary_)) return tokens;
    const llama_token bos = llama_vocab_bos(vocabulary_);
    if (bos != LLAMA_TOKEN_NULL && (tokens->empty() || tokens->front() != bos))
      tokens->insert(tokens->begin(), bos);
    return tokens;
  }

  Result<TemplatedChat> apply(const Json& messages, const ChatTools& tools, const Json& given_values,
                              const ThinkingOptions& thinking) const override {
    Json values = given_values;
    set_thinking(thinking.may_think ? thinking.wish : ThinkingWish{.thinks = false}, words_, values);
    const TemplateProgram& program = programs_.of(tools);
    const auto written = write_chat(program, control_, messages, tools.functions, values);
    if (!written.ok()) return written.error();
    auto tokens = encode(*written, 0);
    if (!tokens.ok()) return tokens.error();
    TemplatedChat chat{.prompt = written->text,
                       .tokens = std::move(tokens).value(),
                       .quotes_tokens = !written->quoted.empty()};
    try {
      common_chat_templates_inputs inputs;
      for (const auto& [name, value] : values.items()) inputs.chat_template_kwargs[name] = value.dump();
      inputs.reasoning_format =
          thinking.splits_thoughts ? COMMON_REASONING_FORMAT_AUTO : COMMON_REASONING_FORMAT_NONE;
      inputs.enable_thinking = thinks(program, *written, messages, tools, values);
      if (continues(messages)) {
        inputs.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
        inputs.add_generation_prompt = false;
      }
      inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(messages.dump()));
      const bool calls = tools.may_be_called();
      inputs.tools = functions(calls && !tools.held.empty() ? tools.held : tools.functions, tools.only);
      inputs.tool_choice = calls ? COMMON_CHAT_TOOL_CHOICE_AUTO : COMMON_CHAT_TOOL_CHOICE_NONE;
      inputs.parallel_tool_calls = tools.parallel.value_or(can("supports_parallel_tool_calls"));
      common_chat_params params = common_chat_templates_apply(templates_.get(), inputs);
      chat.stops = params.additional_stops;
      CompletionReading reading{.splits_thoughts = thinking.splits_thoughts,
                                .one_call = tools.parallel == false,
                                .continues = continues(messages)};
      if (!calls) {
        if (thinking.may_think) read_completions(params, reading, chat);
        return chat;
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
        // If a template has no mark at the start of a call, the library would take any bracket for a call.
        inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
        if (params.grammar.empty()) params = common_chat_templates_apply(templates_.get(), inputs);
      }
      // Without a grammar, the model may write calls in its own format.
      if (tools.choice == ChatTools::Choice::automatic || chat.grammar.empty()) {
        reading.untagged_functions = tools.functions;
      } else {
        reading.calls_alone = true;
      }
      read_completions(params, reading, chat);
      return chat;
    } catch (const std::exception& e) {
      if (!tools.may_be_called()) return chat;
      std::string why = e.what();
      std::ranges::replace(why, '\n', ' ');
      return error("llama.cpp can't parse tool calls of this chat template: {}", why);
    }
  }

 private:
  void read_completions(const common_chat_params& params, const CompletionReading& reading,
                        TemplatedChat& chat) const {
    chat.format = read_by_library(params, reading);
    std::vector<std::string> marks = params.preserved_tokens;
    marks.push_back(params.thinking_start_tag);
    std::ranges::copy(params.thinking_end_tags, std::back_inserter(marks));
    if (!reading.untagged_functions.empty()) std::ranges::copy(call_tags(), std::back_inserter(marks));
    for (const std::string& mark : marks) {
      const auto tokens = tokenizer_.encode(mark, /*add_special=*/false, /*parse_special=*/true);
      if (!tokens.ok()) continue;
      std::ranges::copy_if(*tokens, std::back_inserter(chat.kept_tokens),
                           [this](std::int32_t token) { return tokenizer_.is_control(token); });
    }
  }

  // Returns whether completions contain thoughts, which the library must know. If the request does not say,
  // the template's own default decides.
  bool thinks(const TemplateProgram& program, const ChatText& written, const Json& messages,
              const ChatTools& tools, const Json& values) const {
    constexpr const char* kSwitch = "enable_thinking";
    if (values.contains(kSwitch) || program.source().find(kSwitch) == std::string::npos)
      return values.value(kSwitch, true);
    Json thinking = values;
    thinking[kSwitch] = true;
    const auto text = write_chat(program, control_, messages, tools.functions, thinking);
    return text.ok() && text->text == written.text;
  }

  bool can(const char* what) const { return common_chat_templates_get_caps(templates_.get()).at(what); }

  static std::vector<common_chat_tool> functions(const Json& tools, const std::string& only) {
    std::vector<common_chat_tool> all = common_chat_tools_parse_oaicompat(common_json::parse(tools.dump()));
    if (!only.empty()) std::erase_if(all, [&](const common_chat_tool& tool) { return tool.name != only; });
    return all;
  }

  // Returns rules that restrict a completion only from the beginning of a call on.
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

  // Adds a word that begins a call. If the word is a single token, the matcher can compare tokens and need
  // not search all of the text.
  void add_word(const std::string& word, GrammarRules& rules) const {
    const auto tokens = tokenizer_.encode(word, /*add_special=*/false, /*parse_special=*/true);
    if (tokens.ok() && tokens->size() == 1) {
      rules.trigger.tokens.push_back(tokens->front());
    } else {
      rules.trigger.words.push_back(word);
    }
  }

  const Tokenizer& tokenizer_;
  const llama_vocab* vocabulary_;
  ControlTokens control_;
  Programs programs_;
  common_chat_templates_ptr templates_;
  TemplateWords words_;
};

// Returns the text of a token. The text is empty if the model has no such token.
std::string token_text(const Tokenizer& tokenizer, llama_token token) {
  return token == LLAMA_TOKEN_NULL ? "" : tokenizer.piece(token);
}

const char* template_in(const Tokenizer& tokenizer, const char* variant) {
  const llama_model* model = tokenizer.library_model();
  return model == nullptr ? nullptr : llama_model_chat_template(model, variant);
}

}  // namespace

bool ChatTemplate::is_in(const Tokenizer& tokenizer) {
  return template_in(tokenizer, nullptr) != nullptr;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::open(const Tokenizer& tokenizer,
                                                               const std::string& file) {
  if (file.empty()) return make(tokenizer, "", "the model's chat template");
  const auto source = read_text_file(file);
  if (!source.ok()) return source.error();
  return make(tokenizer, *source, fmt::format("the chat template '{}'", file));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::make(const Tokenizer& tokenizer,
                                                               const std::string& source,
                                                               const std::string& name) {
  if (tokenizer.library_model() == nullptr || (source.empty() && !is_in(tokenizer)))
    return error("the model's file has no chat template");
  const llama_vocab* vocabulary = llama_model_get_vocab(tokenizer.library_model());
  const std::string bos = token_text(tokenizer, llama_vocab_bos(vocabulary));
  const std::string eos = token_text(tokenizer, llama_vocab_eos(vocabulary));
  Programs programs;
  auto chat =
      TemplateProgram::parse(source.empty() ? template_in(tokenizer, nullptr) : source, name, bos, eos);
  if (!chat.ok()) return chat.error();
  programs.chat = std::move(chat).value();
  if (const char* other = source.empty() ? template_in(tokenizer, "tool_use") : nullptr) {
    auto tools = TemplateProgram::parse(other, name + " for tools", bos, eos);
    if (!tools.ok()) return tools.error();
    programs.tools = std::move(tools).value();
  }
  try {
    return std::shared_ptr<const ChatTemplate>(std::make_shared<LibraryTemplate>(
        tokenizer, std::move(programs), common_chat_templates_init(tokenizer.library_model(), source)));
  } catch (const std::exception& e) {
    return error("{} can't be read: {}", name, e.what());
  }
}

}  // namespace kvant
