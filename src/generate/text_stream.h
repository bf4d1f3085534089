// TextStream holds the text of a completion while tokens arrive. The text ends before the first stop text.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvant {

class TextStream {
 public:
  // Each text of `stops` ends the completion and is not part of it. No stop text may be empty.
  explicit TextStream(std::vector<std::string> stops = {});

  // Adds a token's bytes. Returns the text that can be shown now, which consists of complete characters and
  // of bytes that no continuation can complete. An end that may be the start of a stop text is held back.
  // After a stop, the result is empty. If `hidden` is true, the bytes of `piece` are never shown. A stop text
  // may contain either all or none of these bytes.
  std::string add(std::string_view piece, bool hidden = false);
  // Ends the completion and returns the text that was held back. After a stop, the result is empty.
  std::string finish();

  bool stopped() const { return !stop_.empty(); }
  const std::string& stop() const { return stop_; }  // the text that ended the completion; empty if none did
  std::size_t shown() const { return shown_; }       // bytes that were returned or hidden so far

 private:
  std::string take(std::size_t n);
  std::size_t held_back() const;
  std::size_t find(const std::string& stop) const;

  std::vector<std::string> stops_;
  std::string pending_;
  std::size_t shown_ = 0;
  // Each entry is a hidden range of the pending text, from its first byte in the completion to the byte after
  // its last.
  std::deque<std::pair<std::size_t, std::size_t>> hidden_;
  std::string stop_;
};

}  // namespace kvant
