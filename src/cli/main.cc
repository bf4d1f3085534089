// Starts the command line program: lists the commands, parses the words and runs one command.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/warn.h"
#include "cli/command.h"
#include "cli/option_errors.h"
#include "cli/output_files.h"

namespace {

constexpr int kUserError = 2;
// Shells give this status to programs that Ctrl-C ended.
constexpr int kInterrupted = 128 + SIGINT;

int fail(const std::string& message, int code = kUserError) {
  kvant::say("kvant: {}\n", message);
  return code;
}

int fail_output(const std::string& why) {
  return fail("cannot write to the standard output: " + why + "; free some disk space");
}

// Flushes stdout at the end, because a full disk shows only when buffered output is written.
int close_output() {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return 0;
  return fail_output(errno != 0 ? std::strerror(errno) : "some output is lost");
}

// Users of llama.cpp write the options of kOneDash with one dash, but CLI11 would read "-ctk" as "-c tk".
constexpr std::string_view kOneDash[] = {"-ctk", "-ctv", "-cnv", "-ngl", "-nkvo", "-np"};
// kvant does not have the options kUnknown of llama.cpp. CLI11 would misread them, for example "-fa on" as
// "-f a".
constexpr std::string_view kUnknown[] = {"-cb", "-fa", "-hf", "-md", "-mg", "-sm", "-tb", "-ts"};

std::vector<std::string> with_two_dashes(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool one_dash = std::ranges::find(kOneDash, word) != std::end(kOneDash) ||
                          std::ranges::find(kUnknown, word) != std::end(kUnknown);
    words.push_back(one_dash ? "-" + word : word);
  }
  return words;
}

// CLI11 reports wrong options, and also requests for help, by exceptions.
int parse(CLI::App& program, int argc, char** argv, bool& done) {
  done = true;
  const std::vector<std::string> words = with_two_dashes(argc, argv);
  try {
    // CLI11 takes the words in reverse order.
    program.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::Success& help) {
    return program.exit(help);
  } catch (const CLI::ParseError& wrong) {
    return fail(kvant::option_error(program, wrong, words, {argv + 1, argv + argc}));
  }
  done = false;
  return 0;
}

int run(int argc, char** argv) {
  CLI::App program("Runs language models with a low-bit key-value cache.", "kvant");
  program.require_subcommand(1);
  program.set_version_flag("--version", "kvant " KVANT_VERSION, "print the version and exit");
  program.get_formatter()->column_width(36);
  std::vector<kvant::Command> commands;
  for (const auto add : {kvant::add_run_command, kvant::add_serve_command, kvant::add_eval_command,
                         kvant::add_bench_command, kvant::add_calibrate_command, kvant::add_tune_command,
                         kvant::add_advise_command, kvant::add_info_command, kvant::add_compare_command,
                         kvant::add_report_command, kvant::add_recipes_command}) {
    commands.push_back(add(program));
  }
  bool done = false;
  const int code = parse(program, argc, argv, done);
  if (done) return code;
  for (const kvant::Command& command : commands) {
    if (!command.app->parsed()) continue;
    kvant::Status status = kvant::check_output_files(*command.app);
    if (status.ok()) status = command.run();
    if (status.ok()) return close_output();
    const bool interrupted = command.was_interrupted && command.was_interrupted();
    return fail(status.error().message, interrupted ? kInterrupted : kUserError);
  }
  return 0;
}

// Opens /dev/null in place of closed standard streams. Otherwise, a file that kvant opens could get the
// number of such a stream, and messages would go into the file. Writing to the standard output still fails.
bool replace_closed_streams() {
  constexpr int kModes[] = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int stream = 0; stream < 3; ++stream)
    if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", kModes[stream]) != stream) return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!replace_closed_streams()) return kUserError;
  // Without this line, the system ends a program that writes beyond a limit on the size of files, and nobody
  // could save what the program holds. A write that fails is an error like that of a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail("out of memory: use a smaller model, context or recipe");
  } catch (const std::system_error& failure) {
    // fmt::print() throws if the standard output is full.
    return std::ferror(stdout) != 0 ? fail_output(failure.code().message()) : fail(failure.what());
  } catch (const std::exception& unexpected) {
    return fail(unexpected.what());
  }
}
