#include "chat/untagged_calls.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace kvant {
namespace {

constexpr std::string_view kBlanks = " \t\r\n", kFence = "```";
constexpr std::string_view kWordLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-.";

// Models write these tags around calls: marks of other templates, and tags of the prompt's list of tools.
constexpr std::array<std::string_view, 7> kOpeningTags = {
    "<tool_call>", "<tool_calls>", "<tools>", "<tool>", "<function_call>", "<function_calls>", "<function>"};
constexpr std::array<std::string_view, 7> kClosingTags = {
    "</tool_call>",     "</tool_calls>",     "</tools>",   "</tool>",
    "</function_call>", "</function_calls>", "</function>"};

}  // namespace

bool begins_with_call_tag(std::string_view text) {
  return std::ranges::any_of(kOpeningTags, [&](std::string_view tag) { return text.starts_with(tag); });
}

std::vector<std::string> call_tags() {
  std::vector<std::string> tags(kOpeningTags.begin(), kOpeningTags.end());
  tags.insert(tags.end(), kClosingTags.begin(), kClosingTags.end());
  return tags;
}

namespace {

// Returns the length of the tag at the beginning of the text. Returns 0 if there is no tag, and nothing if
// more text is needed to decide.
template <std::size_t kCount>
std::optional<std::size_t> tag_length(const std::array<std::string_view, kCount>& tags,
                                      std::string_view text) {
  for (const std::string_view tag : tags) {
    if (text.starts_with(tag)) return tag.size();
  }
  const bool may_become_one = std::ranges::any_of(tags, [&](auto tag) { return tag.starts_with(text); });
  return may_become_one ? std::nullopt : std::optional<std::size_t>(0);
}

std::size_t skip(std::string_view letters, std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(letters, at), text.size());
}

bool begins_json(char c) {
  return c == '{' || c == '[';
}

// Returns where the content of a fenced block begins: after the fence, the language and white space.
std::size_t fence_content(std::string_view text) {
  return skip(kBlanks, text, skip(kWordLetters, text, kFence.size()));
}

}  // namespace

UntaggedCalls::Found UntaggedCalls::add(const std::string& text) {
  held_ += text;
  return scan(/*is_last=*/false);
}

UntaggedCalls::Found UntaggedCalls::finish(bool is_call_next) {
  if (is_call_next && held_.starts_with(kFence) && fence_content(held_) == held_.size()) held_.clear();
  Found found = scan(/*is_last=*/true);
  if (!after_call_ && !is_call_next) found.text += space_;
  space_.clear();
  return found;
}

UntaggedCalls::Found UntaggedCalls::scan(bool is_last) {
  Found found;
  while (!held_.empty() && step(is_last, found)) {
  }
  return found;
}

bool UntaggedCalls::step(bool is_last, Found& found) {
  switch (place_) {
    case Place::code:
      return step_code(is_last, found);
    case Place::object:
      return step_object(found);
    case Place::wrapper:
      return step_wrapper(is_last, found);
    case Place::text:
      break;
  }
  return step_text(is_last, found);
}

bool UntaggedCalls::step_text(bool is_last, Found& found) {
  const std::size_t at = std::min(held_.find_first_of("`{[<"), held_.size());
  if (at > 0) {
    release(at, found);
    return true;
  }
  if (held_[0] == '`') return step_fence(is_last, found);
  return held_[0] == '<' ? step_tag(is_last, found) : step_json(is_last, found);
}

bool UntaggedCalls::step_fence(bool is_last, Found& found) {
  const std::size_t n_ticks = skip("`", held_, 0);
  if (n_ticks == held_.size() && n_ticks < kFence.size() && at_line_start_ && !is_last) return false;
  if (n_ticks != kFence.size() || !at_line_start_) {
    release(n_ticks, found);
    return true;
  }
  std::size_t at = fence_content(held_);
  auto verdict = is_last ? CallJson::Verdict::no : CallJson::Verdict::unknown;
  if (at < held_.size()) {
    const auto tag = tag_length(kOpeningTags, std::string_view(held_).substr(at));
    if (tag) at = skip(kBlanks, held_, at + *tag);
    if (tag && at < held_.size()) verdict = take_call(at, is_last, found);
  }
  if (verdict == CallJson::Verdict::yes) in_fence_ = true;
  if (verdict == CallJson::Verdict::no) {
    release(fence_content(held_), found);
    place_ = Place::code;
  }
  return verdict != CallJson::Verdict::unknown;
}

bool UntaggedCalls::step_tag(bool is_last, Found& found) {
  const auto tag = tag_length(kOpeningTags, held_);
  if (!tag && !is_last) return false;
  const std::size_t length = tag.value_or(0);
  const std::size_t at = skip(kBlanks, held_, length);
  if (length > 0 && at == held_.size() && !is_last) return false;
  const auto verdict =
      length > 0 && at < held_.size() ? take_call(at, is_last, found) : CallJson::Verdict::no;
  if (verdict == CallJson::Verdict::no) release(std::max<std::size_t>(length, 1), found);
  return verdict != CallJson::Verdict::unknown;
}

bool UntaggedCalls::step_json(bool is_last, Found& found) {
  const auto verdict = take_call(0, is_last, found);
  if (verdict == CallJson::Verdict::no) {
    const std::size_t at = skip(kBlanks, held_, 1);
    const bool is_value = at < held_.size() && held_[at] == (held_[0] == '[' ? '{' : '"');
    if (is_value) {
      place_ = Place::object;
      depth_ = 0;
      in_string_ = after_backslash_ = after_newline_ = false;
    } else {
      release(1, found);
    }
  }
  return verdict != CallJson::Verdict::unknown;
}

// Releases text up to the fence that closes the block.
bool UntaggedCalls::step_code(bool is_last, Found& found) {
  const std::size_t fence = held_.find(kFence);
  if (fence != std::string::npos) {
    release(fence, found);
    if (at_line_start_) place_ = Place::text;
    release(kFence.size(), found);
    return true;
  }
  const std::size_t last = held_.find_last_not_of('`');
  const std::size_t length = is_last ? held_.size() : last == std::string::npos ? 0 : last + 1;
  release(length, found);
  return length > 0;
}

// Releases text up to the bracket that closes the value. An empty line ends the value, too, because the text
// is then hardly JSON.
bool UntaggedCalls::step_object(Found& found) {
  std::size_t length = 0;
  while (length < held_.size() && place_ == Place::object) {
    const char c = held_[length++];
    if (after_backslash_) {
      after_backslash_ = false;
    } else if (c == '\\') {
      after_backslash_ = in_string_;
    } else if (c == '"') {
      in_string_ = !in_string_;
    } else if (!in_string_ && (c == '{' || c == '[')) {
      ++depth_;
    } else if (!in_string_ && (c == '}' || c == ']') && --depth_ <= 0) {
      place_ = Place::text;
    }
    if (c == '\n' && after_newline_) place_ = Place::text;
    after_newline_ = c == '\n';
  }
  release(length, found);
  return true;
}

bool UntaggedCalls::step_wrapper(bool is_last, Found& found) {
  const std::size_t at = skip(std::string(kBlanks) + ",;", held_, 0);
  const std::string_view rest = std::string_view(held_).substr(at);
  if (rest.empty()) {
    held_.clear();
    return true;
  }
  const auto closing = tag_length(kClosingTags, rest), opening = tag_length(kOpeningTags, rest);
  const bool closes_fence = in_fence_ && rest.starts_with(kFence);
  if (const std::size_t tag = std::max(closing.value_or(0), opening.value_or(0)); tag > 0 || closes_fence) {
    if (closes_fence) place_ = Place::text;
    held_.erase(0, at + (closes_fence ? kFence.size() : tag));
    at_line_start_ = false;
    return true;
  }
  const bool may_close = !closing || !opening || (in_fence_ && kFence.starts_with(rest));
  if (may_close && is_last) held_.clear();
  if (may_close) return is_last;
  const auto verdict = begins_json(rest[0]) ? take_call(at, is_last, found) : CallJson::Verdict::no;
  if (verdict == CallJson::Verdict::no) place_ = in_fence_ ? Place::code : Place::text;
  return verdict != CallJson::Verdict::unknown;
}

// If a call begins at `begin`, takes the call and drops the text before it.
CallJson::Verdict UntaggedCalls::take_call(std::size_t begin, bool is_last, Found& found) {
  CallJson::Reading reading = json_.read(std::string_view(held_).substr(begin));
  if (reading.verdict == CallJson::Verdict::unknown && is_last) return CallJson::Verdict::no;
  if (reading.verdict != CallJson::Verdict::yes) return reading.verdict;
  std::ranges::move(reading.calls, std::back_inserter(found.calls));
  held_.erase(0, begin + reading.length);
  if (place_ != Place::wrapper) in_fence_ = false;
  place_ = Place::wrapper;
  after_call_ = true;
  at_line_start_ = false;
  return reading.verdict;
}

void UntaggedCalls::release(std::size_t length, Found& found) {
  const std::string text = held_.substr(0, length);
  held_.erase(0, length);
  const std::size_t newline = text.rfind('\n');
  const bool is_blank_line =
      text.find_first_not_of(" \t\r", newline == std::string::npos ? 0 : newline + 1) == std::string::npos;
  at_line_start_ = is_blank_line && (newline != std::string::npos || at_line_start_);
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string::npos) {
    if (!after_call_ || (has_text_ && space_.empty())) space_ += text;
    return;
  }
  const std::size_t last = text.find_last_not_of(kBlanks);
  if (!after_call_) {
    found.text += space_ + text.substr(0, last + 1);
  } else {
    if (has_text_) found.text += space_.empty() ? text.substr(0, first) : space_;
    found.text += text.substr(first, last + 1 - first);
  }
  space_ = text.substr(last + 1);
  has_text_ = true;
  after_call_ = false;
}

}  // namespace kvant
