// NameReader parses a format's name from left to right. The parse functions of the format families take the
// parts of a name in order.
#pragma once

#include <string_view>

namespace kvant {

class NameReader {
 public:
  explicit NameReader(std::string_view name) : rest_(name) {}

  // Returns whether the unread part of the name begins with `text`, and consumes `text` if so.
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  // Consumes and returns the decimal number at the front. Returns -1 if no number is there, or if the number
  // has a leading zero or more than four digits.
  int take_number() {
    int value = 0;
    std::size_t digits = 0;
    while (digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9') {
      if (digits == kMaxDigits) return -1;
      value = value * 10 + (rest_[digits] - '0');
      ++digits;
    }
    if (digits == 0 || rest_[0] == '0') return -1;
    rest_.remove_prefix(digits);
    return value;
  }

  bool at_end() const { return rest_.empty(); }

 private:
  static constexpr std::size_t kMaxDigits = 4;
  std::string_view rest_;
};

}  // namespace kvant
