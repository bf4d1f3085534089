#include "cli/session_coding_option.h"

#include "task/session_coding.h"

namespace kvant {

CLI::Option* add_session_coding_option(CLI::App& command, std::string& coding) {
  return command
      .add_option("--session-coding", coding,
                  "how session files are written: plain, or compact, which is lossless and smaller, but "
                  "slower to save and load; both can be read")
      ->check(CLI::IsMember({kPlainCoding, kCompactCoding}))
      ->capture_default_str();
}

}  // namespace kvant
