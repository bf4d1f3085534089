// Launches prefill attention in half precision by products of warps, for one head size. Chooses the shape of
// blocks that suits the device.
#pragma once

#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/launch_warps.h"
#include "device/cuda/prompt/mma_kernel.cuh"

namespace kvant::cuda {

// Calls body(shape, slots, ctas) with the shape that suits the device. `ctas` is the number of CTAs per SM.
// Heads of 512 channels have only one shape, for which `slots` may be less than the shape's kLeastSlots.
template <int D, class Body>
auto with_mma_shape(const Gpu& gpu, const Body& body) {
  if constexpr (D == 512) {
    using Only = MmaShape<D, 1, 8, 2>;
    return body(Only{}, slots_of<Only>(gpu, 1, sizeof(MmaShared<Only>)), 1);
  } else {
    // With heads of 256, registers do not hold the sums of more rows.
    constexpr int kRowTiles = D == 256 ? 1 : 2;
    using Several = MmaShape<D, kRowTiles, 4>;
    using Wide = std::conditional_t<D == 64, Several, MmaShape<D, 1, 8>>;
    return with_warp_shape<Several, Wide, MmaShared>(gpu, body);
  }
}

template <int D>
PromptSizes mma_prompt_sizes(const Gpu& gpu) {
  return with_mma_shape<D>(gpu, []<class Shape>(Shape, int slots, int ctas) {
    return slots < Shape::kLeastSlots ? PromptSizes{} : warp_sizes<Shape>(HalfTile<D>::kBytes, ctas);
  });
}

template <int D>
cudaError_t launch_mma_prompt(const PromptArgs& args, const PromptLaunch& launch) {
  return with_mma_shape<D>(launch.gpu, [&]<class Shape>(Shape, int slots, int) {
    if (const cudaError_t error = launch_half_tiles<D>(args, launch, Shape::kRows); error != cudaSuccess)
      return error;
    auto* kernel =
        launch.sas ? mma_prompt_kernel<Shape, SasHalfWeight> : mma_prompt_kernel<Shape, ExactHalfWeight>;
    return launch_warps<Shape>(kernel, slots, args, launch);
  });
}

}  // namespace kvant::cuda
