// Launches of prompt attention in half precision by products of warps, for one head size: which shape of a
// block suits a device, and what it works in.
#pragma once

#include "attention/cuda/prompt/launch.h"
#include "attention/cuda/prompt/launch_overlapped.h"
#include "attention/cuda/prompt/mma_kernel.cuh"

namespace kvant::cuda {

// Slots that fit beside `ctas - 1` other CTAs of the shape; less than kLeastSlots: it can't run so.
template <class Shape>
int slots_of(const Gpu& gpu, int ctas) {
  constexpr int kOthers = Shape::kQueryBytes + static_cast<int>(sizeof(MmaShared<Shape>));
  const int bytes = std::min(gpu.shared_bytes, gpu.multiprocessor_shared_bytes / ctas - Gpu::kReservedBytes);
  return std::min((bytes - kOthers) / Shape::kSlotBytes, kMostSlots);
}

// Calls body(shape, slots, CTAs of a multiprocessor) with the shape that suits the device. Two CTAs of four
// warps, whose products and weights take turns by themselves, where shared memory has room for them; else one
// of eight, if need be of four.
template <int D, class Body>
auto with_mma_shape(const Gpu& gpu, const Body& body) {
  constexpr int kRowTiles = D == 256 ? 1 : 2;  // more sums than that have no room in registers
  using Pair = MmaShape<D, kRowTiles, 4>;
  using Wide = MmaShape<D, 1, 8>;
  if (const int slots = slots_of<Pair>(gpu, 2); slots >= Pair::kLeastSlots) return body(Pair{}, slots, 2);
  if constexpr (D > 64) {
    if (const int slots = slots_of<Wide>(gpu, 1); slots >= Wide::kLeastSlots) return body(Wide{}, slots, 1);
  }
  return body(Pair{}, slots_of<Pair>(gpu, 1), 1);
}

template <int D>
PromptSizes mma_prompt_sizes(const Gpu& gpu) {
  return with_mma_shape<D>(gpu, []<class Shape>(Shape, int, int ctas) {
    return PromptSizes{Shape::kRows, HalfTile<D>::kBytes,
                       static_cast<std::size_t>(kMostHalves) * Shape::kParts * HalfSums<D, 32>::kNumbers,
                       kMostHalves * Shape::kParts * 2, ctas};
  });
}

template <int D>
cudaError_t launch_mma_prompt(const PromptArgs& args, const PromptLaunch& launch) {
  return with_mma_shape<D>(launch.gpu, [&]<class Shape>(Shape, int slots, int) {
    if (const cudaError_t error = launch_half_tiles<D>(args, launch, Shape::kRows); error != cudaSuccess)
      return error;
    const int bytes = Shape::kQueryBytes + slots * Shape::kSlotBytes;
    auto* kernel = mma_prompt_kernel<Shape>;
    if (const cudaError_t error = allow_shared(kernel, bytes); error != cudaSuccess) return error;
    return launch_overlapped(kernel, dim3(args.n_ctas), Shape::kThreads, bytes, launch, args, slots);
  });
}

}  // namespace kvant::cuda
