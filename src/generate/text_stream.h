// TextStream: the text of an answer while its tokens come, up to the first stop text.
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
  // stops: texts that end the answer and don't belong to it; none may be empty.
  explicit TextStream(std::vector<std::string> stops = {});

  // Adds a token's bytes. Returns what can be shown now: whole characters (and bytes that no continuation can
  // make one of), without an end that may be the beginning of a stop text. After a stop: nothing. hidden: the
  // bytes are never shown. A stop text may have all of them, or none.
  std::string add(std::string_view piece, bool hidden = false);
  // The answer has ended: what was held back. Nothing after a stop.
  std::string finish();

  bool stopped() const { return !stop_.empty(); }
  const std::string& stop() const { return stop_; }  // the text that has ended the answer; empty: none has
  std::size_t shown() const { return shown_; }       // bytes that were returned so far, or are hidden

 private:
  std::string take(std::size_t n);
  std::size_t held_back() const;
  std::size_t find(const std::string& stop) const;

  std::vector<std::string> stops_;
  std::string pending_;
  std::size_t shown_ = 0;
  std::deque<std::pair<std::size_t, std::size_t>>
      hidden_;  // of what is pending: bytes of the answer, from and to
  std::string stop_;
};

}  // namespace kvant
