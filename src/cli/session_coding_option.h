// Adds --session-coding to the commands that keep sessions in files.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvant {

CLI::Option* add_session_coding_option(CLI::App& command, std::string& coding);

}  // namespace kvant
