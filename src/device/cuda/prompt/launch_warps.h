// Chooses the shape of blocks that suits a device, for kernels with products of warps, and launches them.
// Several small CTAs on an SM are preferred, because one CTA multiplies while another CTA computes weights.
#pragma once

#include <algorithm>

#include "device/cuda/common/gpu.h"
#include "device/cuda/prompt/join_halves.cuh"
#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/launch_overlapped.h"
#include "device/cuda/prompt/warp_blocks.cuh"

namespace kvant::cuda {

// Returns how many slots fit if `ctas` CTAs of the shape share an SM. With fewer than kLeastSlots, the shape
// cannot run that way.
template <class Shape>
int slots_of(const Gpu& gpu, int ctas, std::size_t static_bytes) {
  const int others = Shape::kQueryBytes + static_cast<int>(static_bytes);
  const int bytes = std::min(gpu.shared_bytes, gpu.multiprocessor_shared_bytes / ctas - Gpu::kReservedBytes);
  return std::min((bytes - others) / Shape::kSlotBytes, kMostSlots);
}

// Calls body(shape, slots, ctas), where `ctas` is the number of CTAs per SM. If shared memory suffices, the
// shape is Several with as many CTAs as registers allow, because the CTAs' products and weights then
// interleave by themselves. Otherwise one CTA of Wide runs, or one CTA of Several if even Wide does not fit.
// Shared<Shape> is the shape's static shared memory.
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

// Launches a kernel of the shape. The kernel's dynamic shared memory holds queries and a ring of `slots`
// slots.
template <class Shape>
cudaError_t launch_warps(void (*kernel)(PromptArgs, int), int slots, const PromptArgs& args,
                         const PromptLaunch& launch) {
  const int bytes = Shape::kQueryBytes + slots * Shape::kSlotBytes;
  if (const cudaError_t error = allow_shared(kernel, bytes); error != cudaSuccess) return error;
  return launch_overlapped(kernel, dim3(args.n_ctas), Shape::kThreads, bytes, launch, args, slots);
}

// Returns the sizes of kernels with this shape.
template <class Shape>
PromptSizes warp_sizes(int tile_bytes, int ctas) {
  return {Shape::kRows, tile_bytes,
          static_cast<std::size_t>(kMostHalves) * Shape::kParts * HalfSums<Shape::kSumChannels, 32>::kNumbers,
          kMostHalves * Shape::kParts * 2, ctas};
}

}  // namespace kvant::cuda
