#include "base/machine_limits.h"

#if defined(__linux__)
#include <sched.h>
#else
#include <thread>
#endif

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/control_groups.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

constexpr int kMostProcessors = 8192;  // most processors for which the system is asked

std::string first_line(const fs::path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Reads a file that contains one number. Returns nothing for "max", -1, or a missing file.
std::optional<std::int64_t> limit_in(const fs::path& path) {
  std::ifstream file(path);
  double number = 0;  // Some versions of v1 write numbers beyond 2^63.
  if (!(file >> number) || number < 0 || number >= 0x1p60) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

// Returns the numbers in a list such as "0-3,8". The set is empty if the text is not such a list.
std::set<int> processors_in(const std::string& list) {
  std::set<int> processors;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream text(range);
    if (!(text >> first)) return {};
    last = text >> dash >> last ? last : first;
    for (int i = first; i <= std::min(last, kMostProcessors); ++i) processors.insert(i);
  }
  return processors;
}

// Restricts `processors` to the processors that the control groups allow.
std::set<int> within_groups(std::set<int> processors, const fs::path& root) {
  for (const ControlGroup& group : control_groups("cpuset", root)) {
    std::set<int> own = processors_in(
        first_line(group.folder / (group.v2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus")));
    if (own.empty()) own = processors_in(first_line(group.folder / "cpuset.cpus"));
    if (own.empty()) continue;
    std::erase_if(processors, [&](int processor) { return !own.contains(processor); });
  }
  return processors;
}

// Counts cores rather than processors, because processors of one core share its arithmetic units. A second
// thread on a core gains nothing.
int cores_of(const std::set<int>& processors, const fs::path& root) {
  std::set<std::string> cores;
  for (const int processor : processors) {
    const fs::path topology =
        root / "sys/devices/system/cpu" / ("cpu" + std::to_string(processor)) / "topology";
    std::string core = first_line(topology / "core_cpus_list");
    if (core.empty()) core = first_line(topology / "thread_siblings_list");
    cores.insert(core.empty() ? "alone " + std::to_string(processor) : core);
  }
  return static_cast<int>(cores.size());
}

// Returns the number of processors that a group's CPU quota pays for, rounded up, or nothing if the group has
// no limit.
std::optional<int> quota_of(const ControlGroup& group) {
  double quota = 0, period = 0;
  if (group.v2) {
    std::istringstream text(first_line(group.folder / "cpu.max"));
    if (!(text >> quota >> period)) return std::nullopt;  // The text is "max 100000".
  } else {
    std::istringstream quota_text(first_line(group.folder / "cpu.cfs_quota_us"));
    std::istringstream period_text(first_line(group.folder / "cpu.cfs_period_us"));
    if (!(quota_text >> quota) || !(period_text >> period)) return std::nullopt;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return std::max(1, static_cast<int>((quota + period - 1) / period));
}

// Sums the lines of memory.stat that have one of `names`.
std::int64_t sum_of(const fs::path& stat, const std::vector<std::string>& names) {
  std::ifstream file(stat);
  std::int64_t sum = 0, value = 0;
  for (std::string name; file >> name >> value;) {
    if (std::ranges::find(names, name) != names.end()) sum += value;
  }
  return sum;
}

// Returns the bytes that a group may still allocate under its limits, or nothing if the group has no limit.
std::optional<std::int64_t> memory_left(const ControlGroup& group) {
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::string> limits = group.v2 ? std::vector<std::string>{"memory.max", "memory.high"}
                                                   : std::vector<std::string>{"memory.limit_in_bytes"};
  for (const std::string& name : limits)
    limit = std::min(limit, limit_in(group.folder / name).value_or(limit));
  if (limit == std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  const std::int64_t used =
      limit_in(group.folder / (group.v2 ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
  const std::int64_t files =
      sum_of(group.folder / "memory.stat",
             group.v2 ? std::vector<std::string>{"active_file", "inactive_file"}
                      : std::vector<std::string>{"total_active_file", "total_inactive_file"});
  return limit - std::max<std::int64_t>(0, used - files);
}

}  // namespace

std::set<int> allowed_processors() {
  std::set<int> processors;
#if defined(__linux__)
  const std::size_t size = CPU_ALLOC_SIZE(kMostProcessors);
  std::vector<cpu_set_t> mask(size / sizeof(cpu_set_t) + 1);
  if (sched_getaffinity(0, size, mask.data()) != 0) return {0};
  for (int i = 0; i < kMostProcessors; ++i) {
    if (CPU_ISSET_S(i, size, mask.data())) processors.insert(i);
  }
#else
  const int n = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 0; i < std::clamp(n, 1, kMostProcessors); ++i) processors.insert(i);
#endif
  return processors;
}

int usable_threads(const std::set<int>& processors, const fs::path& root) {
  int threads = cores_of(within_groups(processors, root), root);
  for (const ControlGroup& group : control_groups("cpu", root))
    threads = std::min(threads, quota_of(group).value_or(threads));
  return std::max(threads, 1);
}

int usable_threads() {
  return usable_threads(allowed_processors());
}

std::int64_t available_memory_bytes(const fs::path& root) {
  std::int64_t available = 0;
  std::ifstream file(root / "proc/meminfo");
  for (std::string word; file >> word;) {
    if (word == "MemAvailable:" && file >> available) break;
  }
  available *= 1024;
  bool is_known = available > 0;
  for (const ControlGroup& group : control_groups("memory", root)) {
    const auto left = memory_left(group);
    if (!left) continue;
    available = is_known ? std::min(available, *left) : *left;
    is_known = true;
  }
  return is_known ? std::max<std::int64_t>(available, 1) : 0;
}

}  // namespace kvant
