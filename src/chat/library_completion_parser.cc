#include "chat/library_completion_parser.h"

#include <chat.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "chat/thought_tags.h"
#include "chat/untagged_calls.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

std::string new_call_id() {
  std::random_device random;
  return fmt::format("call_{:08x}{:08x}{:08x}", random(), random(), random());
}

// Replaces bytes that are not UTF-8 by U+FFFD, because the library throws an exception at other bytes.
std::string readable(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

// BracketDepth measures the nesting depth of brackets outside of strings. The parser does not know where a
// call begins, and an unpaired quotation mark before the call swaps the inside and the outside of strings.
// BracketDepth therefore keeps two counts, one for each reading. The count of brackets that seem to be inside
// of strings has a higher limit, because brackets in strings are often left open.
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

  std::array<int, 2> depth_{};  // the first count is outside of strings, and the second inside
  bool is_too_deep_ = false, in_string_ = false, after_backslash_ = false;
};

// LibraryFormat holds the data that the library needs to parse a completion.
struct LibraryFormat {
  common_chat_parser_params params;
  std::vector<std::string> thought_ends;
};

std::size_t after_spaces(const std::string& text, std::size_t at) {
  return std::min(text.find_first_not_of(" \t\r\n", at), text.size());
}

// LibraryParse parses a completion with the library's parser for the template's format. The library parses
// the whole text again for each new piece.
class LibraryParse {
 public:
  // The prompt may already contain the start of the message. Parsing an empty string first keeps that start
  // out of the results.
  explicit LibraryParse(const LibraryFormat& format) : format_(format) {
    if (format.params.is_continuation) (void)advance(/*is_partial=*/true);
  }

  std::vector<common_chat_msg_diff> add(const std::string& text) {
    text_ += text;
    return advance(/*is_partial=*/true);
  }
  std::vector<common_chat_msg_diff> finish() { return advance(/*is_partial=*/false); }
  bool has_calls() const { return !message_.tool_calls.empty(); }

  // Returns the end of the text that does not match the template's format. The end is not empty if the
  // completion was cut off or if the model left the format. Call unread() after finish().
  std::string unread() const {
    const std::string& begin = format_.params.generation_prompt;
    common_peg_parse_context context(begin + text_, COMMON_PEG_PARSE_FLAG_LENIENT);
    const common_peg_parse_result parsed = format_.params.parser.parse(context);
    if (parsed.success()) {
      const std::string rest = text_.substr(parsed.end > begin.size() ? parsed.end - begin.size() : 0);
      return after_spaces(rest, 0) == rest.size() ? "" : rest;
    }
    return has_calls() ? "" : after_content();
  }

 private:
  // Returns the text after the message's content, if the content occurs unchanged in the text.
  std::string after_content() const {
    std::size_t at = 0;
    if (!message_.reasoning_content.empty()) {
      at = std::string::npos;
      for (const std::string& end : format_.thought_ends) {
        const std::size_t found = text_.find(end);
        if (found != std::string::npos) at = std::min(at, found + end.size());
      }
      if (at == std::string::npos) return "";
    }
    const std::string& shown = message_.content;
    if (text_.compare(at, shown.size(), shown) != 0) at = after_spaces(text_, at);
    return text_.compare(at, shown.size(), shown) == 0 ? text_.substr(at + shown.size()) : "";
  }

  std::vector<common_chat_msg_diff> advance(bool is_partial) {
    try {
      common_chat_msg message = common_chat_parse(text_, is_partial, format_.params);
      message.set_tool_call_ids(ids_, new_call_id);
      auto diffs = common_chat_msg_diff::compute_diffs(message_, message);
      message_ = std::move(message);
      return diffs;
    } catch (const std::exception&) {
      return {};  // the completion may become valid with more text
    }
  }

  const LibraryFormat& format_;
  std::string text_;
  common_chat_msg message_;  // the message that was parsed so far
  std::vector<std::string> ids_;
};

struct Format {
  std::optional<LibraryFormat> library;  // empty if the whole text is the completion
  bool has_thought_tags = false;
  CompletionReading reading;
};

class Reader : public ToolAnswer {
 public:
  explicit Reader(std::shared_ptr<const Format> format) : format_(std::move(format)) {
    if (format_->library) parse_.emplace(*format_->library);
    if (format_->has_thought_tags) tags_.emplace();
    if (!format_->reading.untagged_functions.empty()) untagged_.emplace(format_->reading.untagged_functions);
  }

  AnswerDelta add(const std::string& text) override {
    AnswerDelta delta;
    add_text(readable(text), delta);
    return trimmed(std::move(delta));
  }

  AnswerDelta finish(bool was_cut) override {
    AnswerDelta delta;
    if (tags_) {
      ThoughtTags::Split split = tags_->finish();
      delta.thought += split.thought;
      add_content_form(split.text, delta);
    }
    if (parse_ && !depth_.is_too_deep()) {
      take(parse_->finish(), delta);
      const std::string rest = parse_->unread();
      began_call_ = was_cut && !has_calls() && begins_call(rest);
      if (!began_call_) add_content(rest, delta);
    }
    if (untagged_) take(untagged_->finish(/*is_call_next=*/false), delta);
    return trimmed(std::move(delta));
  }

  bool has_calls() const override { return n_calls_ > 0 || began_call_; }
  bool is_complete() const override { return format_->reading.one_call && n_calls_ > 1; }

 private:
  // Returns whether text that is in no format yet is the beginning of a call.
  bool begins_call(const std::string& rest) const {
    if (format_->reading.calls_alone) return !rest.empty();
    return begins_with_call_tag(std::string_view(rest).substr(after_spaces(rest, 0)));
  }

  void add_text(const std::string& text, AnswerDelta& delta) {
    if (!tags_) return add_content_form(text, delta);
    const ThoughtTags::Split split = tags_->add(text);
    delta.thought += split.thought;
    add_content_form(split.text, delta);
  }

  // Adds text in the template's format. The library's parser recurses for each bracket, so text beyond a
  // nesting limit is passed on unparsed.
  void add_content_form(const std::string& text, AnswerDelta& delta) {
    if (!parse_) return add_content(text, delta);
    const bool was_too_deep = depth_.is_too_deep();
    depth_.add(text);
    if (was_too_deep) {
      delta.text += text;
    } else if (!depth_.is_too_deep()) {
      take(parse_->add(text), delta);
    } else {
      const std::string before = parse_->unread();
      if (untagged_) take(untagged_->finish(/*is_call_next=*/false), delta);
      delta.text += before + text;
    }
  }

  void take(const std::vector<common_chat_msg_diff>& diffs, AnswerDelta& delta) {
    for (const common_chat_msg_diff& diff : diffs) {
      delta.thought += diff.reasoning_content_delta;
      add_content(diff.content_delta, delta);
      if (diff.tool_call_index == std::string::npos) continue;
      if (untagged_) take(untagged_->finish(/*is_call_next=*/true), delta);
      untagged_.reset();
      if (!n_untagged_) n_untagged_ = n_calls_;
      const common_chat_tool_call& call = diff.tool_call_delta;
      add_call({*n_untagged_ + static_cast<int>(diff.tool_call_index), call.name.empty() ? "" : call.id,
                call.name, call.arguments},
               delta);
    }
  }

  void add_content(const std::string& text, AnswerDelta& delta) {
    if (untagged_) return take(untagged_->add(text), delta);
    delta.text += text;
  }

  void take(const UntaggedCalls::Found& found, AnswerDelta& delta) {
    delta.text += found.text;
    for (const WrittenCall& call : found.calls)
      add_call({n_calls_, new_call_id(), call.name, call.arguments}, delta);
  }

  void add_call(ToolCallPart part, AnswerDelta& delta) {
    n_calls_ = std::max(n_calls_, part.index + 1);
    if (format_->reading.one_call && part.index > 0) return;
    delta.calls.push_back(std::move(part));
  }

  AnswerDelta trimmed(AnswerDelta delta) {
    delta.thought = edges_.thought(delta.thought);
    delta.text = edges_.text(delta.text);
    return delta;
  }

  std::shared_ptr<const Format> format_;
  std::optional<ThoughtTags> tags_;
  std::optional<LibraryParse> parse_;
  std::optional<UntaggedCalls> untagged_;
  BracketDepth depth_;
  ThoughtEdges edges_;
  int n_calls_ = 0;                // calls whose name is known
  bool began_call_ = false;        // the completion was cut in a call before its name
  std::optional<int> n_untagged_;  // the number of calls before the first one with the template's marks
};

class SharedFormat : public ToolFormat {
 public:
  explicit SharedFormat(Format format) : format_(std::make_shared<Format>(std::move(format))) {}
  std::unique_ptr<ToolAnswer> read() const override { return std::make_unique<Reader>(format_); }

 private:
  std::shared_ptr<const Format> format_;
};

// Returns whether the format leaves text unchanged. The library then need not parse the completions.
bool is_plain(const LibraryFormat& format) {
  const std::string text = "text";
  try {
    const common_chat_msg message = common_chat_parse(text, /*is_partial=*/false, format.params);
    return message.content == text && message.reasoning_content.empty();
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

std::shared_ptr<const ToolFormat> read_by_library(const common_chat_params& params,
                                                  CompletionReading reading) {
  LibraryFormat library{.params = params, .thought_ends = params.thinking_end_tags};
  library.params.reasoning_format =
      reading.splits_thoughts ? COMMON_REASONING_FORMAT_AUTO : COMMON_REASONING_FORMAT_NONE;
  library.params.is_continuation = reading.continues;
  if (!params.parser.empty()) library.params.parser.load(params.parser);
  Format format;
  format.has_thought_tags = reading.splits_thoughts && !params.supports_thinking;
  format.reading = std::move(reading);
  const bool has_form = !params.grammar.empty() || params.supports_thinking || !is_plain(library);
  if (has_form) format.library = std::move(library);
  return std::make_shared<SharedFormat>(std::move(format));
}

}  // namespace kvant
