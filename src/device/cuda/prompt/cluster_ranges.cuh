// Finds the ranges of channels (channel_ranges.cuh) on GPUs with clusters (sm_90). A cluster's CTAs sample
// one tile each, and one CTA reads the sums from the shared memory of all CTAs.
#pragma once

#include <cooperative_groups.h>

#include "device/cuda/prompt/channel_ranges.cuh"

namespace kvant::cuda {

template <int D, bool IsHalf, class Source>
__global__ void __cluster_dims__(kSampledTiles, 1, 1) __launch_bounds__(kQuantizeThreads,
                                                                        Source::kSamplingCtas)
    channel_ranges_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ Source source) {
  extern __shared__ __align__(16) unsigned char page_memory[];
  // Successors read tiles before they wait for the ranges.
  admit_successors();
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
  // Until this barrier, the first CTA may read this CTA's sums.
  cluster.sync();
}

}  // namespace kvant::cuda
