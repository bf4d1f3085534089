#include "recipe/message_text.h"

#include <cstddef>

namespace kvant {

std::string quoted(const std::string& text) {
  constexpr std::size_t kLongest = 80;
  std::string out = "'";
  for (char c : text.substr(0, kLongest)) out += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > kLongest) out += "...";
  return out + "'";
}

std::string did_you_mean(std::span<const std::string> names) {
  if (names.empty()) return "";
  std::string out = "; did you mean " + names[0];
  for (std::size_t i = 1; i < names.size(); ++i) out += (i + 1 == names.size() ? " or " : ", ") + names[i];
  return out + "?";
}

std::string listed(std::span<const std::string> names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace kvant
