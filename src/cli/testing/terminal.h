// Lets tests use the program as a user at a terminal does.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

namespace kvant::testing {

class Terminal {
 public:
  // Starts a command of the shell in a folder, on a new terminal.
  Terminal(const std::string& folder, const std::string& command) {
    process_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (process_ != 0) return;
    if (chdir(folder.c_str()) == 0) execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ~Terminal() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    close(terminal_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) const {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Waits until the screen shows a text that no earlier call has waited for.
  void wait_for(const std::string& text) {
    std::size_t at;
    while ((at = screen_.find(text, seen_)) == std::string::npos)
      ASSERT_TRUE(read_more()) << "the screen never shows '" << text << "': " << screen_;
    seen_ = at + text.size();
  }
  // Waits until the screen shows n more bytes than what earlier calls have waited for.
  void wait_for_more(std::size_t n) {
    while (screen_.size() < seen_ + n) ASSERT_TRUE(read_more()) << screen_;
  }
  // Waits for the end of the command and returns its exit code, or -1 if a signal ended the command.
  int end() {
    while (read_more()) {
    }
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& screen() const { return screen_; }

 private:
  // Returns false at the end of the output, and after a minute without output.
  bool read_more() {
    constexpr int kPatience = 60'000;  // milliseconds
    std::array<char, 4096> bytes{};
    pollfd ready{terminal_, POLLIN, 0};
    if (poll(&ready, 1, kPatience) <= 0) return false;
    const ssize_t n = read(terminal_, bytes.data(), bytes.size());
    if (n <= 0) return false;
    screen_.append(bytes.data(), static_cast<std::size_t>(n));
    return true;
  }

  int terminal_ = -1;
  pid_t process_ = -1;
  std::string screen_;
  std::size_t seen_ = 0;
};

}  // namespace kvant::testing
