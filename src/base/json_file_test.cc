#include "base/json_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvant {
namespace {

namespace fs = std::filesystem;

class JsonFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("kvant_json_file_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_F(JsonFile, ReplacesTheOldFileWhole) {
  ASSERT_TRUE(write_whole_file(path("a"), "a longer first text").ok());
  ASSERT_TRUE(write_whole_file(path("a"), "second").ok());
  EXPECT_EQ(read(path("a")), "second");
  EXPECT_EQ(files(), 1);
}

TEST_F(JsonFile, WritesThroughASymbolicLink) {
  ASSERT_TRUE(write_whole_file(path("target"), "old").ok());
  fs::create_symlink(path("target"), path("link"));
  ASSERT_TRUE(write_whole_file(path("link"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read(path("target")), "new");
}

TEST_F(JsonFile, FailsClearlyWhenTheDirectoryIsMissing) {
  const std::string missing = path("no/such/file.json");
  EXPECT_FALSE(check_writable(missing).ok());
  const Status status = write_whole_file(missing, "x");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find(missing), std::string::npos);
}

TEST_F(JsonFile, RefusesADirectory) {
  EXPECT_FALSE(check_writable(folder_.string()).ok());
  EXPECT_FALSE(write_whole_file(folder_.string(), "x").ok());
  EXPECT_EQ(files(), 0);
}

TEST_F(JsonFile, AFullDeviceIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  const Status status = write_whole_file("/dev/full", "x");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("No space left"), std::string::npos);
}

// A limit on file sizes simulates a full disk, which stops the write halfway.
TEST_F(JsonFile, AWriteThatStopsHalfWayLeavesTheOldFile) {
  ASSERT_TRUE(write_whole_file(path("a"), "old").ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = write_whole_file(path("a"), std::string(5000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(read(path("a")), "old");
  EXPECT_EQ(files(), 1);
}

// Process numbers repeat, at once if a container restarts, so a new process may find a file with its own
// number.
TEST_F(JsonFile, WhatAKilledProcessHasLeftIsNotInTheWay) {
  std::ofstream(path(("a." + std::to_string(getpid()) + kTemporaryEnding).c_str())) << "half a fi";
  ASSERT_TRUE(write_whole_file(path("a"), "whole").ok());
  EXPECT_EQ(read(path("a")), "whole");
  EXPECT_EQ(files(), 1);
}

TEST_F(JsonFile, WritesPartsOneAfterAnother) {
  const std::string a = "one, ", b, c = "two";
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  ASSERT_TRUE(write_whole_file(path("a"), {bytes(a), bytes(b), bytes(c)}, 0600).ok());
  EXPECT_EQ(read(path("a")), "one, two");
  EXPECT_EQ(fs::status(path("a")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(JsonFile, CheckWritableLeavesNothingBehind) {
  EXPECT_TRUE(check_writable(path("later.json")).ok());
  EXPECT_EQ(files(), 0);
}

}  // namespace
}  // namespace kvant
