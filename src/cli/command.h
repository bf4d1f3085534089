// Declares the subcommands of the program. Each subcommand has its own file, and main.cc lists all of them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/result.h"

namespace kvant {

struct Command {
  CLI::App* app = nullptr;
  // Runs after the options are parsed. An error ends the program with exit code 2.
  std::function<Status()> run;
  // Returns whether Ctrl-C caused the error of `run`, so the exit code is 130. An empty function means never.
  std::function<bool()> was_interrupted = {};
};

Command add_run_command(CLI::App& program);
Command add_serve_command(CLI::App& program);
Command add_eval_command(CLI::App& program);
Command add_bench_command(CLI::App& program);
// Adds a subcommand to kvant bench.
Command add_bench_attention_command(CLI::App& bench);
Command add_info_command(CLI::App& program);
Command add_calibrate_command(CLI::App& program);
Command add_tune_command(CLI::App& program);
Command add_advise_command(CLI::App& program);
Command add_compare_command(CLI::App& program);
Command add_report_command(CLI::App& program);
Command add_recipes_command(CLI::App& program);

}  // namespace kvant
