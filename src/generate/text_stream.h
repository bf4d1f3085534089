// TextStream: the text of an answer while its tokens arrive, up to the first stop text.
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
  // stops: texts that end the answer and are not part of it; none may be empty.
  explicit TextStream(std::vector<std::string> stops = {});

  // Adds a token's bytes. Returns the text that can be shown now: whole characters (and bytes that can't
  // become one), without an end that may begin a stop text. Returns nothing after a stop. hidden: the bytes
  // are never shown; a stop text may contain all of them, or none.
  std::string add(std::string_view piece, bool hidden = false);
  // Ends the answer and returns the text that was held back; nothing after a stop.
  std::string finish();

  bool stopped() const { return !stop_.empty(); }
  const std::string& stop() const { return stop_; }  // the text that ended the answer; empty: none
  std::size_t shown() const { return shown_; }       // bytes returned so far, or hidden

 private:
  std::string take(std::size_t n);
  std::size_t held_back() const;
  std::size_t find(const std::string& stop) const;

  std::vector<std::string> stops_;
  std::string pending_;
  std::size_t shown_ = 0;
  std::deque<std::pair<std::size_t, std::size_t>>
      hidden_;  // hidden ranges of the pending text: bytes of the answer, from and to
  std::string stop_;
};

}  // namespace kvant
