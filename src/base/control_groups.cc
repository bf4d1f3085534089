#include "base/control_groups.h"

#include <fstream>
#include <optional>
#include <sstream>

namespace kvant {
namespace {

namespace fs = std::filesystem;

// Returns whether a list such as "rw,cpu,cpuacct" contains `item`.
bool list_has(const std::string& list, const std::string& item) {
  std::istringstream items(list);
  for (std::string each; std::getline(items, each, ',');) {
    if (each == item) return true;
  }
  return false;
}

// Holds the process's group in each hierarchy. proc/self/cgroup has lines of NUMBER:CONTROLLERS:PATH, and the
// list of controllers is empty for v2.
struct OwnGroups {
  std::optional<std::string> v1, v2;
};

OwnGroups own_groups(const std::string& controller, const fs::path& root) {
  OwnGroups groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) groups.v2 = line.substr(second + 1);
    if (list_has(controllers, controller)) groups.v1 = line.substr(second + 1);
  }
  return groups;
}

// Describes where a hierarchy is mounted, and which of its groups is the root of the mount.
struct Mount {
  fs::path folder;
  std::string group = "/";
};

// Finds the mount in proc/self/mountinfo, whose lines are "ID PARENT DEVICE GROUP FOLDER OPTIONS [FIELDS] -
// TYPE SOURCE OPTIONS". Without that file the function assumes the usual paths.
std::optional<Mount> find_mount(const std::string& controller, bool v2, const fs::path& root) {
  std::ifstream file(root / "proc/self/mountinfo");
  bool has_lines = false;
  for (std::string line; std::getline(file, line);) {
    has_lines = true;
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string skipped, group, folder, type, source, options;
    before >> skipped >> skipped >> skipped >> group >> folder;
    after >> type >> source >> options;
    if (v2 ? type == "cgroup2" : type == "cgroup" && list_has(options, controller))
      return Mount{root / folder.substr(folder.find_first_not_of('/')), group};
  }
  if (has_lines) return std::nullopt;
  const fs::path usual = root / "sys/fs/cgroup";
  return Mount{v2 ? usual : usual / controller};
}

std::vector<ControlGroup> groups_up(const Mount& mount, std::string path, bool v2) {
  // In a container without a namespace of its own, the container's group is the root of the mount, but `path`
  // starts at the host's root.
  if (mount.group != "/" && path.starts_with(mount.group)) path.erase(0, mount.group.size());
  if (path.find("/..") != std::string::npos) path.clear();  // The path belongs to another namespace.
  std::vector<ControlGroup> groups;
  for (fs::path own = fs::path(path).relative_path().lexically_normal(); !own.empty() && own != ".";
       own = own.parent_path())
    groups.push_back({mount.folder / own, v2});
  groups.push_back({mount.folder, v2});
  return groups;
}

}  // namespace

std::vector<ControlGroup> control_groups(const std::string& controller, const fs::path& root) {
  const OwnGroups own = own_groups(controller, root);
  // A controller belongs to one hierarchy. If both versions are mounted, v2 may have only other controllers.
  std::vector<ControlGroup> groups;
  for (const bool v2 : {false, true}) {
    const std::optional<std::string>& path = v2 ? own.v2 : own.v1;
    if (!path) continue;
    const auto mount = find_mount(controller, v2, root);
    if (!mount) continue;
    const auto found = groups_up(*mount, *path, v2);
    groups.insert(groups.end(), found.begin(), found.end());
  }
  return groups;
}

}  // namespace kvant
