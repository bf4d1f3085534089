// Measures how long a launch on the GPU takes, for benchmarks without CUDA graphs. The result is a median, so
// a few slow runs do not matter.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "device/cuda/test/device_memory.h"

namespace kvant::cuda {

// Returns the median time of launch() over `runs` runs, in microseconds between CUDA events. Two runs before
// these are not counted. If a launch fails, the program ends with an error message that contains `what`.
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
