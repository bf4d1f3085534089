#include "chat/library_completion_parser.h"

#include <chat.h>
#include <fmt/format.h>

#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <random>

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

}  // namespace

std::shared_ptr<const ToolFormat> read_by_library(const common_chat_params& params, bool one_call) {
  return std::make_shared<LibraryFormat>(params, one_call);
}

}  // namespace kvant
