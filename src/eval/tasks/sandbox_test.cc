#include "eval/tasks/sandbox.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "eval/tasks/sandbox_fixture.h"

namespace kvant {
namespace {

class Sandbox : public SandboxFixture {};

ProgramRun run_program(const std::string& source, const SandboxLimits& limits = {}) {
  const auto run = run_sandboxed_python(source, limits);
  EXPECT_TRUE(run.ok()) << (run.ok() ? "" : run.error().message);
  return run.ok() ? *run : ProgramRun{};
}

// Returns what a program prints that tries `statement` and names the exception.
std::string failure_of(const std::string& statement,
                       std::int64_t memory_bytes = SandboxLimits{}.memory_bytes) {
  const std::string source = "import os, socket, subprocess, signal, threading, mmap\ntry:\n  " + statement +
                             "\n  print('done', end='')\nexcept BaseException as e:\n"
                             "  print(type(e).__name__, end='')\n";
  return run_program(source, {.memory_bytes = memory_bytes}).output;
}

double seconds_of(const std::string& source, const SandboxLimits& limits, ProgramRun& run) {
  const auto start = std::chrono::steady_clock::now();
  run = run_program(source, limits);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_F(Sandbox, RunsPrograms) {
  const ProgramRun right = run_program("import math\nprint(math.factorial(5), input.__name__)\n");
  EXPECT_TRUE(right.succeeded);
  EXPECT_EQ(right.output, "120 input\n");
  const ProgramRun wrong = run_program("assert 1 + 1 == 3");
  EXPECT_FALSE(wrong.succeeded);
  EXPECT_FALSE(wrong.timed_out);
  // A program cannot pretend that it could not start.
  EXPECT_FALSE(run_program("import os\nos._exit(127)").succeeded);
  EXPECT_FALSE(run_program("import os\nos.write(3, b'f')").succeeded);
}

TEST_F(Sandbox, StopsAnEndlessLoop) {
  ProgramRun run;
  EXPECT_LT(seconds_of("while True: pass", {.cpu_seconds = 1, .wall_seconds = 60}, run), 50);
  EXPECT_TRUE(run.timed_out);
  EXPECT_FALSE(run.succeeded);
}

TEST_F(Sandbox, StopsAProgramThatWaits) {
  ProgramRun run;
  EXPECT_LT(seconds_of("import time\ntime.sleep(1000)", {.wall_seconds = 1}, run), 50);
  EXPECT_TRUE(run.timed_out);
}

TEST_F(Sandbox, StopsAProgramThatClosesItsOutput) {
  ProgramRun run;
  const std::string silent = "import os, time\nos.close(1)\ntime.sleep(1000)";
  EXPECT_LT(seconds_of(silent, {.wall_seconds = 1}, run), 50);
  EXPECT_TRUE(run.timed_out);
}

TEST_F(Sandbox, LimitsOutput) {
  const SandboxLimits limits;
  const ProgramRun run = run_program("while True: print('x' * 1000)", limits);
  EXPECT_FALSE(run.succeeded);
  EXPECT_FALSE(run.timed_out);
  EXPECT_LT(run.output.size(), 2 * limits.output_bytes);
}

TEST_F(Sandbox, LimitsMemory) {
  constexpr std::int64_t kFew = 128 << 20;
  EXPECT_EQ(failure_of("x = bytearray(1 << 28)", kFew), "MemoryError");
  EXPECT_EQ(failure_of("x = []\n  while True: x.append(bytearray(1 << 24))", kFew), "MemoryError");
}

TEST_F(Sandbox, StartsNoProcessOrThread) {
  EXPECT_EQ(failure_of("while True: os.fork()"), "PermissionError");
  EXPECT_EQ(failure_of("subprocess.run(['/bin/true'])"), "PermissionError");
  EXPECT_EQ(failure_of("os.system('true') and 1 / 0"), "ZeroDivisionError");
  EXPECT_EQ(failure_of("threading.Thread(target=print).start()"), "RuntimeError");
}

TEST_F(Sandbox, WritesNoFile) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("kvant-sandbox-" + std::to_string(static_cast<long>(getpid())));
  std::filesystem::create_directories(folder);
  const std::string kept = folder / "kept.txt", created = folder / "new.txt";
  std::ofstream(kept) << "kept";
  EXPECT_EQ(failure_of("open('" + created + "', 'w')"), "PermissionError");
  EXPECT_EQ(failure_of("open('" + kept + "', 'a')"), "PermissionError");
  EXPECT_EQ(failure_of("os.open('" + kept + "', os.O_RDONLY | os.O_TRUNC)"), "PermissionError");
  EXPECT_EQ(failure_of("os.remove('" + kept + "')"), "PermissionError");
  EXPECT_EQ(failure_of("os.rename('" + kept + "', '" + created + "')"), "PermissionError");
  EXPECT_EQ(failure_of("os.mkdir('" + created + "')"), "PermissionError");
  EXPECT_EQ(failure_of("os.symlink('" + kept + "', '" + created + "')"), "PermissionError");
  EXPECT_EQ(failure_of("os.chmod('" + kept + "', 0)"), "PermissionError");
  EXPECT_EQ(failure_of("os.truncate('" + kept + "', 0)"), "PermissionError");
  EXPECT_FALSE(std::filesystem::exists(created));
  EXPECT_EQ(std::filesystem::file_size(kept), 4U);
  // Reading is allowed.
  EXPECT_EQ(failure_of("assert open('" + kept + "').read() == 'kept'"), "done");
  std::filesystem::remove_all(folder);
}

TEST_F(Sandbox, ReachesNeitherTheNetworkNorOtherProcesses) {
  EXPECT_EQ(failure_of("socket.socket()"), "PermissionError");
  EXPECT_EQ(failure_of("socket.socketpair()"), "PermissionError");
  EXPECT_EQ(failure_of("os.kill(os.getppid(), signal.SIGKILL)"), "PermissionError");
  EXPECT_EQ(failure_of("open(f'/proc/{os.getppid()}/mem', 'r+b')"), "PermissionError");
  EXPECT_EQ(failure_of("os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)"), "PermissionError");
  // A pipe must not send signals either.
  EXPECT_EQ(failure_of("import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())"),
            "PermissionError");
  EXPECT_EQ(failure_of("import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETSIG, 9)"), "PermissionError");
}

TEST_F(Sandbox, SeesNoFileOrEnvironmentOfThisProcess) {
  ASSERT_EQ(setenv("KVANT_SANDBOX_TEST", "secret", 1), 0);
  EXPECT_EQ(failure_of("os.environ['KVANT_SANDBOX_TEST']"), "KeyError");
  unsetenv("KVANT_SANDBOX_TEST");
  // The list of files has one entry of its own.
  EXPECT_EQ(failure_of("assert len(os.listdir('/proc/self/fd')) == 4"), "done");
}

TEST_F(Sandbox, RefusesAProgramThatIsTooLong) {
  const auto run = run_sandboxed_python(std::string(1 << 20, ' '));
  ASSERT_FALSE(run.ok());
  EXPECT_NE(run.error().message.find("longer"), std::string::npos);
}

}  // namespace
}  // namespace kvant
