// Encodes full pages of the tail, or pages of new rows, with the arithmetic of the formats (src/format)
// operation by operation. The codes therefore equal the CPU's codes, but have the device's order. A CTA
// encodes one page. Intrinsics keep the compiler from fusing operations that the formats round separately.
#pragma once

#include "device/cuda/seal/seal_grids.cuh"

namespace kvant::cuda {

// Encodes a page of src/format/lm.cc. Two threads encode each token, and each thread has half of the token's
// channels.
template <int D>
__device__ void encode_lloyd_max(SealPage<D>& page) {
  static_assert(kSealThreads == 2 * kPageTokens);
  const int n_levels = 1 << page.format.layout.bits;
  const int token = static_cast<int>(threadIdx.x) / 2;
  const int first = static_cast<int>(threadIdx.x) % 2 * (D / 2);
  const auto of_both = [](double sum) { return sum + __shfl_xor_sync(~0U, sum, 1); };
  double energy = 0;
  for (int channel = first; channel < first + D / 2; ++channel)
    energy += static_cast<double>(page.value(token, channel)) * page.value(token, channel);
  energy = of_both(energy);
  const double reciprocal = energy > 0 ? sqrt(static_cast<double>(D)) / sqrt(energy) : 0;
  double along = 0;
  double length = 0;
  for (int channel = first; channel < first + D / 2; ++channel) {
    const float scaled = static_cast<float>(page.value(token, channel) * reciprocal);
    std::uint32_t code = 0;
    for (int i = 0; i + 1 < n_levels; ++i) code += scaled > page.format.boundaries[i] ? 1 : 0;
    page.store_code(token, channel, code);
    along += static_cast<double>(page.value(token, channel)) * page.format.levels[code];
    length += static_cast<double>(page.format.levels[code]) * page.format.levels[code];
  }
  along = of_both(along);
  length = of_both(length);
  if (first > 0) return;
  const double gain = page.format.stored.unbiased ? energy / along : along / length;
  page.store_half(token, along > 0 ? half_saturated(static_cast<float>(fmin(gain, 65504.0))) : __half(0));
}

// Encodes the due pages of all formats except trellis and vector codes.
template <int D>
__global__ void __launch_bounds__(kSealThreads, 3) seal_kernel(const __grid_constant__ SealArgs args) {
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& shared = *reinterpret_cast<SealShared<D>*>(bytes);
  const SealLaunch launch(args);
  const SealUnit& unit = args.units[blockIdx.y];
  const auto side = static_cast<PageSide>(unit.side);
  DuePage due;
  if (!find_due_page<true>(args, unit, blockIdx.x, &due)) return;
  auto* const out = reinterpret_cast<std::uint32_t*>(due.sealed);
  SealPage<D> page{shared, SealShared<D>::kHasPage ? shared.page : out, args.sides[unit.side], side};
  if (due.row >= 0) {
    load_new_rows<D>(args, unit, due, shared.values, SealShared<D>::kRow);
  } else {
    load_rows<D>(due.tail, side, shared.values, SealShared<D>::kRow);
  }
  for (int i = static_cast<int>(threadIdx.x); i < page.format.page_bytes / 4; i += kSealThreads)
    page.words[i] = 0;
  if (threadIdx.x < 2) shared.largest[threadIdx.x] = 0;
  if (threadIdx.x < kPageTokens / 32)
    shared.left_out[threadIdx.x] = left_out_tokens(args, unit, due, static_cast<int>(threadIdx.x));
  __syncthreads();
  switch (page.format.encoding) {
    case Encoding::channel_grid:
      encode_channels(page);
      break;
    case Encoding::token_grid:
      encode_tokens(page);
      break;
    case Encoding::e4m3:
      encode_e4m3(page);
      break;
    case Encoding::progressive:
      encode_progressive(page);
      break;
    case Encoding::lloyd_max:
      encode_lloyd_max(page);
      break;
    case Encoding::trellis:
    case Encoding::vectors:
      break;  // trellis and vector codes have kernels of their own
  }
  __syncthreads();
  count_if_out_of_range(args, unit, due, page.format, D, page.parameters());
  if constexpr (SealShared<D>::kHasPage)
    for (int i = static_cast<int>(threadIdx.x); i < page.format.page_bytes / 4; i += kSealThreads)
      out[i] = shared.page[i];
}

}  // namespace kvant::cuda
