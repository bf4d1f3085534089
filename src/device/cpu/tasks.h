// Divides a call's work over threads.
#pragma once

#include <cstdint>
#include <functional>

namespace kvant::device::cpu {

// Runs body(i) for each i in [0, n) on as many threads as the process may use, and returns when all are done.
// `work` counts multiplications, because threads for a small call would cost more than they save. Threads end
// with the call, so a process may fork between calls. It throws std::bad_alloc if a body throws.
void for_each_task(int n, std::int64_t work, const std::function<void(int)>& body);

}  // namespace kvant::device::cpu
