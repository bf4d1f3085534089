// The control groups of Linux (cgroup v1, v2 and both beside each other) that this process is in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvant {

// One group of a hierarchy as its folder of files.
struct ControlGroup {
  std::filesystem::path folder;
  bool v2 = false;
};

// The process's own group of the hierarchy that has this controller ("memory", "cpu", "cpuset"), and the
// groups that it lies in, up to the outermost one that can be seen: each may have a limit. A container sees
// its own part alone. root: "/", or for tests a folder with the same files: proc/self/cgroup and
// proc/self/mountinfo, which may be missing, and sys/fs/cgroup.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = "/");

}  // namespace kvant
