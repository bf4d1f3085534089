// ChatTerminal reads the turns of a chat. Pasted text is one turn, and text that nobody read does not reach
// the shell when the chat ends.
#pragma once

#include <termios.h>

#include <string>

namespace kvant {

class ChatTerminal {
 public:
  // If the standard input is a terminal, asks the terminal to mark pasted text ("bracketed paste").
  ChatTerminal();
  // Restores the terminal and discards its unread input.
  ~ChatTerminal();
  ChatTerminal(const ChatTerminal&) = delete;
  ChatTerminal& operator=(const ChatTerminal&) = delete;

  bool is_terminal() const { return is_terminal_; }
  // Reads the next turn: a line, or several lines that were pasted together. Blank lines between turns are
  // skipped. Returns false at the end of the input and after a signal.
  bool read_turn(std::string& turn);

 private:
  bool is_terminal_;
  termios before_{};
};

}  // namespace kvant
