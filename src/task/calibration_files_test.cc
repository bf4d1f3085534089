#include "task/calibration_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

namespace kvant {
namespace {

// Variable sets an environment variable, or removes the variable, until the end of its scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name); before != nullptr) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value == nullptr) {
      unsetenv(name_);
    } else {
      setenv(name_, value, /*overwrite=*/1);
    }
  }

  const char* name_;
  std::optional<std::string> before_;
};

TEST(CalibrationFolder, LiesInTheUsersCache) {
  const Variable home("HOME", "/home/user");
  ::testing::internal::CaptureStderr();
  for (const char* unusable : {static_cast<const char*>(nullptr), "", "relative", "relative"}) {
    const Variable cache("XDG_CACHE_HOME", unusable);
    EXPECT_EQ(calibration_folder(), "/home/user/.cache/kvant");
  }
  // A relative path is ignored, which is said once.
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("XDG_CACHE_HOME is 'relative'"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  const Variable cache("XDG_CACHE_HOME", "/var/cache/user");
  EXPECT_EQ(calibration_folder(), "/var/cache/user/kvant");
}

// A folder that all users share would let anybody replace calibrations.
TEST(CalibrationFolder, IsNoneWithoutAHome) {
  const Variable cache("XDG_CACHE_HOME", nullptr);
  for (const char* none : {static_cast<const char*>(nullptr), ""}) {
    const Variable home("HOME", none);
    EXPECT_EQ(calibration_folder(), "");
  }
}

TEST(Interruption, SaysThatTheWorkEndsSoon) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Interruption interruption;
    EXPECT_FALSE(*interruption.flag());
    ::testing::internal::CaptureStderr();
    std::raise(signal);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(*interruption.flag());
    EXPECT_NE(said.find("kvant: ending after the sample"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace kvant
