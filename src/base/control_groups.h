// The Linux control groups (cgroup v1, v2, or both) that this process belongs to.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvant {

// One group of a hierarchy, given by its folder of files.
struct ControlGroup {
  std::filesystem::path folder;
  bool v2 = false;
};

// Returns the process's own group in the hierarchy of this controller ("memory", "cpu", "cpuset") and all its
// visible parent groups, since each may have a limit. A container sees only its own part. root: "/", or for
// tests a folder with the same files: proc/self/cgroup and proc/self/mountinfo, which may be missing, and
// sys/fs/cgroup.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = "/");

}  // namespace kvant
