// Finds the channels' ranges (channel_ranges.cuh) with a kernel of clusters, whose CTAs read each other's
// sums (sm_90).
#pragma once

#include <cooperative_groups.h>

#include "device/cuda/prompt/channel_ranges.cuh"

namespace kvant::cuda {

template <int D, bool IsHalf, class Source>
__global__ void __cluster_dims__(kSampledTiles, 1, 1) __launch_bounds__(kQuantizeThreads,
                                                                        Source::kSamplingCtas)
    channel_ranges_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ Source source) {
  extern __shared__ __align__(16) unsigned char page_memory[];
  admit_successors();  // successors read tiles before they wait for the ranges
  __shared__ SampleScratch<D> scratch;
  __shared__ ChannelSums<D> sums;
  __shared__ std::uint32_t maxima[kQuantizeThreads / 32];
  const SampleAt of = sample_of_cta();
  sample_tile<D, IsHalf>(args, source, of, page_memory, scratch, sums);
  auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  if (of.sample == 0)
    store_ranges<D>(args, of.seq, of.head, of.is_value, maxima,
                    [&](int i) -> const ChannelSums<D>& { return *cluster.map_shared_rank(&sums, i); });
  cluster.sync();  // other CTAs may read this one's sums until then
}

}  // namespace kvant::cuda
