#include "chat/thought_tags.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvant {
namespace {

constexpr std::string_view kThoughtStart = "<think>", kThoughtEnd = "</think>", kSpaces = " \t\r\n";

// Returns how many bytes at the end of the text may be the beginning of the tag.
std::size_t begun(std::string_view text, std::string_view tag) {
  std::size_t length = std::min(text.size(), tag.size() - 1);
  while (length > 0 && !tag.starts_with(text.substr(text.size() - length))) --length;
  return length;
}

}  // namespace

ThoughtTags::Split ThoughtTags::add(const std::string& text) {
  held_ += text;
  Split split;
  if (place_ == Place::start) {
    const std::size_t at = std::min(held_.find_first_not_of(kSpaces), held_.size());
    const std::string_view begin = std::string_view(held_).substr(at);
    if (begin.starts_with(kThoughtStart)) {
      held_.erase(0, at + kThoughtStart.size());
      place_ = Place::thought;
    } else if (!kThoughtStart.starts_with(begin)) {
      place_ = Place::text;
    }
  }
  if (place_ == Place::thought) {
    const std::size_t end = held_.find(kThoughtEnd);
    const bool has_end = end != std::string::npos;
    const std::size_t length = has_end ? end : held_.size() - begun(held_, kThoughtEnd);
    split.thought = held_.substr(0, length);
    held_.erase(0, has_end ? length + kThoughtEnd.size() : length);
    if (has_end) place_ = Place::space;
  }
  if (place_ == Place::space) {
    held_.erase(0, std::min(held_.find_first_not_of(kSpaces), held_.size()));
    if (!held_.empty()) place_ = Place::text;
  }
  if (place_ == Place::text) split.text = std::exchange(held_, "");
  return split;
}

ThoughtTags::Split ThoughtTags::finish() {
  const std::string rest = std::exchange(held_, "");
  return place_ == Place::thought ? Split{.thought = rest, .text = ""} : Split{.thought = "", .text = rest};
}

std::string ThoughtEdges::thought(const std::string& more) {
  std::string all = space_ + more;
  if (!has_thought_) all.erase(0, std::min(all.find_first_not_of(kSpaces), all.size()));
  has_thought_ = has_thought_ || !all.empty();
  const std::size_t end = all.find_last_not_of(kSpaces) + 1;
  space_ = all.substr(end);
  return all.substr(0, end);
}

std::string ThoughtEdges::text(const std::string& more) {
  if (!has_thought_ || has_text_) return more;
  const std::size_t start = std::min(more.find_first_not_of(kSpaces), more.size());
  has_text_ = start < more.size();
  return more.substr(start);
}

}  // namespace kvant
