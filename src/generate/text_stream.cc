#include "generate/text_stream.h"

#include <algorithm>

#include "base/check.h"
#include "model/utf8.h"

namespace kvant {
namespace {

constexpr std::size_t kLongestCharacter = 4;  // bytes

// Returns the length of the longest prefix of `text` that ends with a complete character, or with bytes that
// no continuation can complete to a character.
std::size_t whole_characters(std::string_view text) {
  const std::size_t n = first_invalid_utf8(text).value_or(text.size());
  const bool may_continue = text.size() - n < kLongestCharacter;
  return may_continue ? n : text.size();
}

// Returns the length of the longest end of `text` that is a proper prefix of `stop`.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  KVANT_CHECK(std::ranges::none_of(stops_, &std::string::empty), "an empty stop text");
}

std::string TextStream::take(std::size_t n) {
  std::string text;
  const std::size_t end = shown_ + n;
  std::size_t at = shown_;
  for (; !hidden_.empty() && hidden_.front().first < end; hidden_.pop_front()) {
    const auto [from, to] = hidden_.front();
    if (from > at) text.append(pending_, at - shown_, from - at);
    at = std::min(to, end);
    if (to > end) break;
  }
  text.append(pending_, at - shown_, end - at);
  pending_.erase(0, n);
  shown_ = end;
  return text;
}

std::size_t TextStream::held_back() const {
  std::size_t n = 0;
  for (const std::string& stop : stops_) n = std::max(n, begun(pending_, stop));
  return n;
}

std::size_t TextStream::find(const std::string& stop) const {
  const auto cuts = [this](std::size_t at) {
    return std::ranges::any_of(
        hidden_, [&](const auto& range) { return range.first < shown_ + at && shown_ + at < range.second; });
  };
  std::size_t at = pending_.find(stop);
  while (at != std::string::npos && (cuts(at) || cuts(at + stop.size()))) at = pending_.find(stop, at + 1);
  return at;
}

std::string TextStream::add(std::string_view piece, bool hidden) {
  if (stopped()) return "";
  pending_ += piece;
  const std::size_t end = shown_ + pending_.size();
  if (hidden && !piece.empty()) hidden_.emplace_back(end - piece.size(), end);
  std::size_t stop_at = std::string::npos;
  const std::string* found = nullptr;
  for (const std::string& stop : stops_) {
    const std::size_t at = find(stop);
    if (at >= stop_at) continue;
    stop_at = at;
    found = &stop;
  }
  if (found == nullptr)
    return take(whole_characters(std::string_view(pending_).substr(0, pending_.size() - held_back())));
  stop_ = *found;
  std::string text = take(stop_at);
  pending_.clear();
  return text;
}

std::string TextStream::finish() {
  return take(pending_.size());
}

}  // namespace kvant
