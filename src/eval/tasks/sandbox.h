// Runs Python programs that a model has written. A filter of system calls (seccomp, Linux) takes away what
// such a program must not do, and the kernel's limits bound what remains.
//
// A program cannot open a file for writing, or change, remove or create one. A program cannot start a thread
// or a process, send a signal, use a socket, or control a terminal or another process. A program can read the
// files that its user can read, but its output is kept by the caller alone. Time, memory, output and the
// number of open files are limited. A system without the filter runs no program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace kvant {

// A program is one argument of a command, and Linux refuses arguments of 128 KiB or more.
inline constexpr std::size_t kMostProgramBytes = 120 * 1024;

struct SandboxLimits {
  int cpu_seconds = 10;                               // processor time
  int wall_seconds = 30;                              // a program that only waits ends after this time
  std::int64_t memory_bytes = std::int64_t{1} << 30;  // address space
  std::size_t output_bytes = 1 << 16;                 // a program that writes more is stopped
};

struct ProgramRun {
  std::string output;      // what the program wrote to the standard output
  bool succeeded = false;  // the program ended by itself, with exit code 0
  bool timed_out = false;  // a limit of time has ended the program
};

// Runs `source` with `python3 -c`, an empty standard input and a fresh environment, in the folder "/".
// Several threads may call the function at the same time. Returns an error if python3 is missing, if the
// system has no filter of system calls, or if the source is longer than kMostProgramBytes.
Result<ProgramRun> run_sandboxed_python(const std::string& source, const SandboxLimits& limits = {});

}  // namespace kvant
