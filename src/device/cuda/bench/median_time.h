// Measures how long a launch takes.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "device/cuda/test/device_memory.h"

namespace kvant::cuda {

// Returns the microseconds of launch(), measured by events: the median of `runs` after two that don't count.
// what: names the launch in the error message that ends the program if it fails.
double median_us(int runs, const char* what, const auto& launch) {
  cudaEvent_t start;
  cudaEvent_t stop;
  check_cuda(cudaEventCreate(&start), "event");
  check_cuda(cudaEventCreate(&stop), "event");
  std::vector<float> times;
  for (int run = -2; run < runs; ++run) {
    check_cuda(cudaEventRecord(start), "event");
    launch();
    check_cuda(cudaEventRecord(stop), "event");
    check_cuda(cudaDeviceSynchronize(), what);
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start, stop), "event");
    if (run >= 0) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e3;
}

}  // namespace kvant::cuda
