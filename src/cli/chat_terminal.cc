#include "cli/chat_terminal.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string_view>

namespace kvant {
namespace {

// Terminals put these marks around pasted text (xterm's control sequences, "bracketed paste mode").
constexpr std::string_view kPasteBegins = "\x1b[200~", kPasteEnds = "\x1b[201~";

void send(const char* control) {
  std::fputs(control, stderr);
  std::fflush(stderr);
}

// Removes all marks from the text, and sets is_pasting to what the last mark says.
void remove_marks(std::string& text, bool& is_pasting) {
  for (std::size_t at = 0; (at = text.find("\x1b[20", at)) != std::string::npos;) {
    const auto mark = std::string_view(text).substr(at, kPasteBegins.size());
    if (mark != kPasteBegins && mark != kPasteEnds) {
      ++at;
      continue;
    }
    is_pasting = mark == kPasteBegins;
    text.erase(at, kPasteBegins.size());
  }
}

}  // namespace

ChatTerminal::ChatTerminal() : is_terminal_(isatty(STDIN_FILENO) == 1) {
  if (!is_terminal_ || tcgetattr(STDIN_FILENO, &before_) != 0) return;
  termios chatting = before_;
  // The terminal would otherwise echo the marks as visible text.
  chatting.c_lflag &= ~static_cast<tcflag_t>(ECHOCTL);
  tcsetattr(STDIN_FILENO, TCSANOW, &chatting);
  if (isatty(STDERR_FILENO) == 1) send("\x1b[?2004h");
}

ChatTerminal::~ChatTerminal() {
  if (!is_terminal_) return;
  if (isatty(STDERR_FILENO) == 1) send("\x1b[?2004l");
  tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
}

bool ChatTerminal::read_turn(std::string& turn) {
  bool is_pasting = false;
  for (turn.clear(); is_pasting || turn.empty(); turn += is_pasting ? "\n" : "") {
    std::string line;
    if (!std::getline(std::cin, line)) return false;
    if (is_terminal_) remove_marks(line, is_pasting);
    turn += line;
    if (is_pasting) continue;
    // Pasted text usually ends with the end of a line, which belongs to no turn.
    turn.erase(turn.find_last_not_of(" \t\r\n") + 1);
  }
  return true;
}

}  // namespace kvant
