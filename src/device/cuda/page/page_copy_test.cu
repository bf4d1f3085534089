// Tests copies by lanes that signal a barrier. Kernels for sm_80 fill their rings with such copies, but the
// copies run on every GPU, including Hopper.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/cuda/page/page_copy.cuh"
#include "device/cuda/test/device_memory.h"

namespace kvant::cuda {
namespace {

constexpr int kSlots = 3;

// Warp 0 copies pages into a ring and warp 1 writes the pages out, so `to` becomes equal to `from`.
__global__ void pass_through_ring(const unsigned char* from, unsigned char* to, int n_pages, int bytes) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t full[kSlots], empty[kSlots];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      barrier_init(shared_address(&full[i]), kLanes);
      barrier_init(shared_address(&empty[i]), kLanes);
    }
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int page = 0; page < n_pages; ++page) {
    const int slot = page % kSlots;
    const std::uint32_t parity = page / kSlots % 2;
    unsigned char* const at = shared + slot * bytes;
    if (threadIdx.x < kLanes) {
      barrier_wait(shared_address(&empty[slot]), parity ^ 1);
      __syncwarp();
      // One lane holds the copy and tells the other lanes.
      PageCopy own{};
      if (lane == page % kLanes)
        own = {shared_address(at), shared_address(&full[slot]), bytes,
               from + static_cast<std::int64_t>(page) * bytes};
      copy_together(of_lane(own, page % kLanes));
    } else {
      barrier_wait(shared_address(&full[slot]), parity);
      for (int i = lane * 16; i < bytes; i += kLanes * 16)
        *reinterpret_cast<uint4*>(to + static_cast<std::int64_t>(page) * bytes + i) =
            *reinterpret_cast<const uint4*>(at + i);
      barrier_arrive(shared_address(&empty[slot]));
    }
  }
}

TEST(PageCopy, BringsPagesOfAnySizeThroughARing) {
  int n_gpus = 0;
  if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus == 0) GTEST_SKIP() << "no GPU";
  constexpr int kPages = 200;
  for (const int bytes : {16, 512, 528, 2048, 8704, 12304}) {
    SCOPED_TRACE(bytes);
    std::vector<unsigned char> pages(static_cast<std::size_t>(kPages) * bytes);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<unsigned char>(i * 131 >> 3 ^ i);
    const DeviceArray<unsigned char> from(pages);
    const DeviceArray<unsigned char> to(std::vector<unsigned char>(pages.size(), 0));
    pass_through_ring<<<1, 2 * kLanes, kSlots * bytes>>>(from.get(), to.get(), kPages, bytes);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(to.read(), pages);
  }
}

}  // namespace
}  // namespace kvant::cuda
