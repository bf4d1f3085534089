#include "base/machine_limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <initializer_list>
#include <utility>

namespace kvant {
namespace machine_limits_test {

namespace fs = std::filesystem;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Simulates the proc and sys files of a machine with 8 processors and 16 GiB, of which 8 GiB are available.
class MachineLimits : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("machine" + std::to_string(getpid()));
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: 8388608 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void write_all(const fs::path& folder,
                 std::initializer_list<std::pair<const char*, const char*>> files) const {
    for (const auto& [name, text] : files) write(folder / name, text);
  }
  // Writes the mounts that systemd makes for version 2 of control groups.
  void mount_v2(const std::string& group = "/") const {
    write("proc/self/mountinfo", "24 1 0:21 / /proc rw - proc proc rw\n35 24 0:30 " + group +
                                     " /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  int threads() const { return usable_threads({0, 1, 2, 3, 4, 5, 6, 7}, root_); }
  std::int64_t memory() const { return available_memory_bytes(root_); }

  fs::path root_;
};

TEST_F(MachineLimits, AreTheMachinesWithoutControlGroups) {
  EXPECT_EQ(threads(), 8);
  EXPECT_EQ(memory(), 8192 * kMiB);
  EXPECT_EQ(usable_threads({2, 5}, root_), 2);  // Affinity allows two processors.
  EXPECT_EQ(usable_threads({}, root_), 1);
}

TEST_F(MachineLimits, AreUnknownWithoutAnyFile) {
  fs::remove_all(root_);
  EXPECT_EQ(threads(), 8);
  EXPECT_EQ(memory(), 0);
}

TEST_F(MachineLimits, CountACoreOnce) {
  for (int i = 0; i < 8; ++i) {
    const std::string core = std::to_string(i % 4);
    write("sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list",
          core + "," + std::to_string(i % 4 + 4) + "\n");
  }
  EXPECT_EQ(threads(), 4);
  EXPECT_EQ(usable_threads({0, 4}, root_), 1);
  EXPECT_EQ(usable_threads({0, 1, 4}, root_), 2);
}

// `docker run --cpus 2.5 --memory 2g` gives the container a namespace of its own, in which its group is "/".
TEST_F(MachineLimits, OfAContainerOfTheSecondVersion) {
  write("proc/self/cgroup", "0::/\n");
  mount_v2();
  write_all("sys/fs/cgroup", {{"cpu.max", "250000 100000\n"},
                              {"memory.max", "2147483648\n"},
                              {"memory.high", "max\n"},
                              {"memory.current", "1610612736\n"},
                              {"memory.stat",
                               "anon 536870912\nfile 1073741824\nactive_file 268435456\n"
                               "inactive_file 805306368\n"}});
  EXPECT_EQ(threads(), 3);
  EXPECT_EQ(memory(), 1536 * kMiB);  // 2 GiB minus the 0.5 GiB that are not file pages
}

// A systemd unit with CPUQuota=150% and MemoryHigh=1G lies in a slice with MemoryMax=4G, in which other units
// use memory too.
TEST_F(MachineLimits, OfASliceAndTheUnitInIt) {
  write("proc/self/cgroup", "0::/ai.slice/kvant.service\n");
  mount_v2();
  write_all(
      "sys/fs/cgroup/ai.slice",
      {{"cpu.max", "max 100000\n"}, {"memory.max", "4294967296\n"}, {"memory.current", "4026531840\n"}});
  write_all("sys/fs/cgroup/ai.slice/kvant.service", {{"cpu.max", "150000 100000\n"},
                                                     {"memory.max", "max\n"},
                                                     {"memory.high", "1073741824\n"},
                                                     {"memory.current", "104857600\n"}});
  EXPECT_EQ(threads(), 2);
  EXPECT_EQ(memory(), 256 * kMiB);  // The slice has less left than the unit.
}

TEST_F(MachineLimits, TakeTheSmallestOfNestedGroups) {
  write("proc/self/cgroup", "0::/a/b/c\n");
  mount_v2();
  write("sys/fs/cgroup/a/cpu.max", "100000 100000");
  write("sys/fs/cgroup/a/b/cpu.max", "700000 100000");
  write("sys/fs/cgroup/a/b/c/cpu.max", "max 100000");
  write("sys/fs/cgroup/a/b/cpuset.cpus.effective", "0-1,6\n");
  EXPECT_EQ(threads(), 1);
  write("sys/fs/cgroup/a/cpu.max", "max 100000");
  EXPECT_EQ(threads(), 3);
  EXPECT_EQ(usable_threads({6, 7}, root_), 1);
}

// With version 1 of control groups, Docker makes each controller a hierarchy. The container's group is the
// root of the mount, but proc/self/cgroup has the group's path on the host.
TEST_F(MachineLimits, OfAContainerOfTheFirstVersion) {
  write("proc/self/cgroup",
        "9:memory:/docker/4f5e\n4:cpu,cpuacct:/docker/4f5e\n3:cpuset:/docker/4f5e\n1:name=systemd:/docker/"
        "4f5e\n");
  write("proc/self/mountinfo",
        "40 30 0:33 /docker/4f5e /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "41 30 0:34 /docker/4f5e /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "42 30 0:35 /docker/4f5e /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n");
  write_all("sys/fs/cgroup/cpu,cpuacct",
            {{"cpu.cfs_quota_us", "350000\n"}, {"cpu.cfs_period_us", "100000\n"}});
  write_all("sys/fs/cgroup/memory",
            {{"memory.limit_in_bytes", "1073741824\n"},
             {"memory.usage_in_bytes", "943718400\n"},
             {"memory.stat", "cache 1\ntotal_active_file 104857600\ntotal_inactive_file 314572800\n"}});
  EXPECT_EQ(threads(), 4);
  EXPECT_EQ(memory(), 524 * kMiB);  // 1024 - (900 - 400)
  write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-2\n");
  EXPECT_EQ(threads(), 3);
}

// Version 1 expresses "no limit" as -1 or as a number larger than any memory.
TEST_F(MachineLimits, KnowWhatIsNoLimitInTheFirstVersion) {
  write("proc/self/cgroup", "9:memory:/\n4:cpu,cpuacct:/\n0::/\n");
  write_all("sys/fs/cgroup/cpu", {{"cpu.cfs_quota_us", "-1\n"}, {"cpu.cfs_period_us", "100000\n"}});
  write_all("sys/fs/cgroup/memory",
            {{"memory.limit_in_bytes", "9223372036854771712\n"}, {"memory.usage_in_bytes", "1\n"}});
  EXPECT_EQ(threads(), 8);  // Without mountinfo the usual paths are tried.
  EXPECT_EQ(memory(), 8192 * kMiB);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");
  EXPECT_EQ(memory(), kMiB - 1);
}

// If both versions are mounted, v2 has no controllers or other controllers.
TEST_F(MachineLimits, OfBothVersionsBesideEachOther) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/user.slice\n0::/user.slice/session.scope\n");
  write("proc/self/mountinfo",
        "40 30 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "41 30 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  write_all("sys/fs/cgroup/cpu/user.slice",
            {{"cpu.cfs_quota_us", "200000"}, {"cpu.cfs_period_us", "100000"}});
  write("sys/fs/cgroup/unified/user.slice/memory.max", "1048576000\n");
  EXPECT_EQ(threads(), 2);
  EXPECT_EQ(memory(), 1000 * kMiB);
}

TEST_F(MachineLimits, AreNotZeroWhereAGroupIsFull) {
  write("proc/self/cgroup", "0::/full\n");
  mount_v2();
  write_all("sys/fs/cgroup/full", {{"memory.max", "1048576\n"}, {"memory.current", "2097152\n"}});
  EXPECT_EQ(memory(), 1);  // 0 would mean unknown.
}

// The process was moved to another group, so its path belongs to another namespace.
TEST_F(MachineLimits, AreThoseOfTheOutermostGroupWhereTheOwnCannotBeSeen) {
  write("proc/self/cgroup", "0::/../elsewhere\n");
  mount_v2();
  write("sys/fs/cgroup/cpu.max", "200000 100000");
  EXPECT_EQ(threads(), 2);
}

TEST(AllowedProcessors, AreSome) {
  EXPECT_FALSE(allowed_processors().empty());
  EXPECT_GE(usable_threads(), 1);
  EXPECT_GT(available_memory_bytes(), kMiB);
}

}  // namespace machine_limits_test
}  // namespace kvant
