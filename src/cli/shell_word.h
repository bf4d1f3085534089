// Quotes words of command lines that users copy from kvant's output.
#pragma once

#include <string>

namespace kvant {

// Returns the word as a POSIX shell reads it, with quotes if the word needs them.
inline std::string shell_word(const std::string& word) {
  if (!word.empty() && word.find_first_of(" ;'\"$&()<>|*?`\\\t\n#~[]{}!") == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace kvant
