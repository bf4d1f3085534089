// Finds the ranges of channels (channel_ranges.cuh) on GPUs without clusters. One kernel leaves the sums of
// samples in global memory, and another kernel adds them up.
#pragma once

#include "device/cuda/prompt/channel_ranges.cuh"

namespace kvant::cuda {

// Returns where a sample's sums lie. The sums use the memory of tiles that are made later. Each sequence and
// head has space for at least one tile.
template <int D>
__device__ __forceinline__ ChannelSums<D>& kept_sums(const PromptArgs& args, const SampleAt& of) {
  static_assert(2 * kSampledTiles * sizeof(ChannelSums<D>) <= StepTile<D>::kBytes);
  auto* sums = reinterpret_cast<ChannelSums<D>*>(
      args.tiles + (static_cast<std::int64_t>(of.seq) * args.n_kv_heads + of.head) * StepTile<D>::kBytes);
  return sums[(of.is_value ? kSampledTiles : 0) + of.sample];
}

// Leaves the sums of one sample per CTA. sample_of_cta() describes the grid.
template <int D, bool IsHalf, class Source>
__global__ void __launch_bounds__(kQuantizeThreads, D <= 128 ? Source::kSamplingCtas : 1)
    sample_channels_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ Source source) {
  extern __shared__ __align__(16) unsigned char page_memory[];
  __shared__ SampleScratch<D> scratch;
  const SampleAt of = sample_of_cta();
  sample_tile<D, IsHalf>(args, source, of, page_memory, scratch, kept_sums<D>(args, of));
}

// Adds up the samples. The grid is [sides][KV heads][sequences].
template <int D>
__global__ void __launch_bounds__(kQuantizeThreads)
    join_samples_kernel(const __grid_constant__ PromptArgs args) {
  __shared__ std::uint32_t maxima[kQuantizeThreads / 32];
  const int seq = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const bool is_value = blockIdx.z != 0;
  store_ranges<D>(args, seq, head, is_value, maxima, [&](int i) -> const ChannelSums<D>& {
    return kept_sums<D>(args, {i, seq, head, is_value});
  });
}

}  // namespace kvant::cuda
