// Which shape of a block suits a device, of kernels whose products are those of warps, and what it works in.
#pragma once

#include <algorithm>

#include "device/cuda/device/gpu.h"
#include "device/cuda/prompt/join_halves.cuh"
#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/launch_overlapped.h"
#include "device/cuda/prompt/warp_blocks.cuh"

namespace kvant::cuda {

// Slots that fit beside `ctas - 1` other CTAs of the shape; less than kLeastSlots: it can't run so.
template <class Shape>
int slots_of(const Gpu& gpu, int ctas, std::size_t static_bytes) {
  const int others = Shape::kQueryBytes + static_cast<int>(static_bytes);
  const int bytes = std::min(gpu.shared_bytes, gpu.multiprocessor_shared_bytes / ctas - Gpu::kReservedBytes);
  return std::min((bytes - others) / Shape::kSlotBytes, kMostSlots);
}

// Calls body(shape, slots, CTAs of a multiprocessor). As many CTAs of the first shape as registers let be,
// whose products and weights take turns by themselves, where shared memory has room for them; else one of the
// other, if need be of the first. Shared: what either has in static shared memory.
template <class Several, class Wide, template <class> class Shared, class Body>
auto with_warp_shape(const Gpu& gpu, const Body& body) {
  for (int ctas = Several::kMostCtas; ctas > 1; --ctas) {
    const int slots = slots_of<Several>(gpu, ctas, sizeof(Shared<Several>));
    if (slots >= Several::kLeastSlots) return body(Several{}, slots, ctas);
  }
  const int slots = slots_of<Wide>(gpu, 1, sizeof(Shared<Wide>));
  if (slots >= Wide::kLeastSlots) return body(Wide{}, slots, 1);
  return body(Several{}, slots_of<Several>(gpu, 1, sizeof(Shared<Several>)), 1);
}

// Launches a kernel of the shape, whose dynamic shared memory are queries and a ring of so many slots.
template <class Shape>
cudaError_t launch_warps(void (*kernel)(PromptArgs, int), int slots, const PromptArgs& args,
                         const PromptLaunch& launch) {
  const int bytes = Shape::kQueryBytes + slots * Shape::kSlotBytes;
  if (const cudaError_t error = allow_shared(kernel, bytes); error != cudaSuccess) return error;
  return launch_overlapped(kernel, dim3(args.n_ctas), Shape::kThreads, bytes, launch, args, slots);
}

template <class Shape>
PromptSizes warp_sizes(int tile_bytes, int ctas) {
  return {Shape::kRows, tile_bytes,
          static_cast<std::size_t>(kMostHalves) * Shape::kParts * HalfSums<Shape::kSumChannels, 32>::kNumbers,
          kMostHalves * Shape::kParts * 2, ctas};
}

}  // namespace kvant::cuda
