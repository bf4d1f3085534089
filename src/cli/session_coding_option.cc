#include "cli/session_coding_option.h"

#include "task/session_coding.h"

namespace kvant {

CLI::Option* add_session_coding_option(CLI::App& command, std::string& coding) {
  return command
      .add_option("--session-coding", coding,
                  "how sessions are written: plain, or compact, in fewer bytes, without loss, which takes "
                  "time at both ends; both are read")
      ->check(CLI::IsMember({kPlainCoding, kCompactCoding}))
      ->capture_default_str();
}

}  // namespace kvant
