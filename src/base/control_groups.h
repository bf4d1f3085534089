// Finds the Linux control groups (cgroup v1, v2, or both) that limit this process. machine_limits.h reads the
// limits of processors and memory from these groups.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvant {

// ControlGroup is one group of a hierarchy, given by the folder of its files.
struct ControlGroup {
  std::filesystem::path folder;
  bool v2 = false;
};

// Returns the process's own group in the hierarchy of a controller ("memory", "cpu", "cpuset") and all
// visible parent groups. Each of these groups may have a limit. A process in a container can read only the
// container's own groups. `root` is "/", or for tests a folder with the files proc/self/cgroup,
// proc/self/mountinfo (which may be missing) and sys/fs/cgroup.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = "/");

}  // namespace kvant
