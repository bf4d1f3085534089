// A Command is a subcommand of the program. Each has its own file and is listed in main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/result.h"

namespace kvant {

struct Command {
  CLI::App* app = nullptr;
  std::function<Status()>
      run;  // runs after the options are parsed; an error ends the program with exit code 2
};

Command add_run_command(CLI::App& program);
Command add_serve_command(CLI::App& program);
Command add_eval_command(CLI::App& program);
Command add_bench_command(CLI::App& program);
Command add_bench_attention_command(CLI::App& bench);  // subcommand of kvant bench
Command add_info_command(CLI::App& program);
Command add_calibrate_command(CLI::App& program);
Command add_tune_command(CLI::App& program);
Command add_advise_command(CLI::App& program);
Command add_compare_command(CLI::App& program);
Command add_report_command(CLI::App& program);

}  // namespace kvant
