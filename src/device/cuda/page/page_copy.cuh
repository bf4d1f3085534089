// Copies pages into shared memory and signals a barrier, on GPUs without bulk copies. A warp copies 16 bytes
// per lane.
#pragma once

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/page/page_layout.h"

namespace kvant::cuda {

// This many arrivals end a copy. With bulk copies it is one arrival, which has the number of bytes to wait
// for. Otherwise each copying lane arrives once.
inline constexpr int kCopyArrivals = Architecture::kBulkCopies ? 1 : kLanes;

struct PageCopy {
  std::uint32_t to, full;  // addresses of the destination and of the barrier in shared memory
  int bytes;               // a multiple of 16
  const unsigned char* from;
};

// Returns the copy that lane `lane` passes as `own`. All lanes of the warp must call this function.
__device__ __forceinline__ PageCopy of_lane(const PageCopy& own, int lane) {
  return {__shfl_sync(~0U, own.to, lane), __shfl_sync(~0U, own.full, lane), __shfl_sync(~0U, own.bytes, lane),
          reinterpret_cast<const unsigned char*>(
              __shfl_sync(~0U, reinterpret_cast<unsigned long long>(own.from), lane))};
}

// Performs `copy` with all lanes of a warp, which must call this function with the same copy.
__device__ __forceinline__ void copy_together(const PageCopy& copy) {
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) % kLanes * 16; at < copy.bytes; at += kLanes * 16)
    copy_16(copy.to + at, copy.from + at);
  arrive_after_copies(copy.full);
}

}  // namespace kvant::cuda
