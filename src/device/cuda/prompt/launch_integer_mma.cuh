// Launches prefill attention in 8-bit integers by products of warps, for one head size. Chooses the shape of
// blocks that suits the device.
#pragma once

#include "device/cuda/prompt/integer_mma_kernel.cuh"
#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/launch_warps.h"

namespace kvant::cuda {

// Calls body(shape, slots, ctas) with the shape that suits the device. `ctas` is the number of CTAs per SM.
template <int D, class Body>
auto with_integer_mma_shape(const Gpu& gpu, const Body& body) {
  // With heads of 256, registers do not hold the sums of more rows.
  constexpr int kRowTiles = D == 256 ? 1 : 2;
  using Several = IntegerMmaShape<D, kRowTiles, 4, D == 64 ? 3 : 2>;
  using Wide = std::conditional_t<D == 256, IntegerMmaShape<D, 1, 8, 1>, Several>;
  return with_warp_shape<Several, Wide, IntegerMmaShared>(gpu, body);
}

template <int D>
PromptSizes integer_mma_sizes(const Gpu& gpu) {
  return with_integer_mma_shape<D>(
      gpu, []<class Shape>(Shape, int, int ctas) { return warp_sizes<Shape>(StepTile<D>::kBytes, ctas); });
}

template <int D>
cudaError_t launch_integer_mma(const PromptArgs& args, const PromptLaunch& launch) {
  return with_integer_mma_shape<D>(launch.gpu, [&]<class Shape>(Shape, int slots, int) {
    if (const cudaError_t error = launch_step_tiles<D>(args, launch, Shape::kRows); error != cudaSuccess)
      return error;
    auto* kernel = launch.sas ? integer_mma_kernel<Shape, SasWeight> : integer_mma_kernel<Shape, ExactWeight>;
    return launch_warps<Shape>(kernel, slots, args, launch);
  });
}

}  // namespace kvant::cuda
