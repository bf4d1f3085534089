// Skips the tests of programs where the system has no filter of system calls, such as under QEMU.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "eval/tasks/sandbox.h"

namespace kvant {

class SandboxFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto run = run_sandboxed_python("pass");
    if (!run.ok() && run.error().message.find("seccomp") != std::string::npos)
      GTEST_SKIP() << run.error().message;
  }
};

}  // namespace kvant
