// What the tiles of a sequence's head have in common: the channels' centres, and how far values lie from
// them.
//
// Keys of a head lose a vector near their mean (SageAttention, section 4: it moves all scores of a row
// alike). Values lose one too, which is added to the outputs since weights add up to one, and are divided by
// a scale for each channel, and one for the tile. Vectors and channels' scales only need to fit roughly: they
// are those of all tokens up to kSampledTiles tiles, and of as many tiles spread over longer sequences.
#pragma once

#include <cooperative_groups.h>

#include "attention/cuda/prompt/tile_rows.cuh"

namespace kvant::cuda {

// A cluster of CTAs reads the tiles of a sequence, KV head and side.
inline constexpr int kSampleCtas = 8;
inline constexpr int kTilesOfCta = 2;
inline constexpr int kSampledTiles = kSampleCtas * kTilesOfCta;

// Of a channel's scale, where all samples are alike: a tile's scale is relative to it and is multiplied by up
// to 2^88 (weigh.cuh), which stays finite for all half-precision values.
inline constexpr float kLeastChannel = 0x1p-28F;
// No channel's scale is less than this of the head's largest, so that tiles' scales stay in bounds.
inline constexpr float kLeastOfWidest = 0x1p-10F;

// Of the tokens that a CTA has read.
template <int D>
struct ChannelSums {
  float sum[D], least[D], greatest[D];
  int n_tokens;
};

// Of a thread's eight channels.
struct OctetSums {
  float sum[8], least[8], greatest[8];
  __device__ __forceinline__ OctetSums() {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum[i] = 0;
      least[i] = INFINITY;
      greatest[i] = -INFINITY;
    }
  }
  template <int D, bool IsHalf>
  __device__ __forceinline__ void add(const OctetsOfTile<D>& from, int n_tokens) {
#pragma unroll
    for (int i = 0; i < OctetsOfTile<D>::kRows; ++i) {
      if (from.token(i) >= n_tokens) continue;
      float x[8];
      unpack_octet<IsHalf>(from.octets[i], x);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum[j] += x[j];
        least[j] = fminf(least[j], x[j]);
        greatest[j] = fmaxf(greatest[j], x[j]);
      }
    }
  }
};

// Adds threads' sums to those of their CTA.
template <int D>
__device__ void add_up(const OctetSums& own, const OctetsOfTile<D>& place,
                       float (&scratch)[3][OctetsOfTile<D>::kRowGroups][D + 1], ChannelSums<D>& sums) {
  using Octets = OctetsOfTile<D>;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = i * Octets::kOctets + place.octet;  // in another bank than its neighbours'
    scratch[0][place.row_group][column] = own.sum[i];
    scratch[1][place.row_group][column] = own.least[i];
    scratch[2][place.row_group][column] = own.greatest[i];
  }
  __syncthreads();
  for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kQuantizeThreads) {
    const int column = channel % 8 * Octets::kOctets + channel / 8;
    float sum = 0;
    float least = INFINITY;
    float greatest = -INFINITY;
#pragma unroll
    for (int i = 0; i < Octets::kRowGroups; ++i) {
      sum += scratch[0][i][column];
      least = fminf(least, scratch[1][i][column]);
      greatest = fmaxf(greatest, scratch[2][i][column]);
    }
    sums.sum[channel] += sum;
    sums.least[channel] = fminf(sums.least[channel], least);
    sums.greatest[channel] = fmaxf(sums.greatest[channel], greatest);
  }
  __syncthreads();
}

// Grid: kSampleCtas for each sequence, KV heads, sides. Sums are added in the same order always.
template <int D, bool IsHalf, class Source>
__global__ void __cluster_dims__(kSampleCtas, 1, 1) __launch_bounds__(kQuantizeThreads, 2)
    channel_ranges_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ Source source) {
  extern __shared__ __align__(16) unsigned char page_memory[];
  __shared__ float scratch[3][OctetsOfTile<D>::kRowGroups][D + 1];
  __shared__ ChannelSums<D> sums;
  __shared__ std::uint32_t maxima[kQuantizeThreads / 32];
  const int cta = static_cast<int>(blockIdx.x) % kSampleCtas;
  const int seq = static_cast<int>(blockIdx.x) / kSampleCtas;
  const int head = static_cast<int>(blockIdx.y);
  const bool is_value = blockIdx.z != 0;
  const SequenceRows rows = rows_of_sequence(args, seq);
  const int first_page = first_seen_page(args, rows);
  const int n_pages = rows.n_sealed - first_page;
  const int n_tiles = n_pages + rows.row_tiles();
  const int n_sampled = min(n_tiles, kSampledTiles);

  OctetsOfTile<D> octets(is_value);
  for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kQuantizeThreads) {
    sums.sum[channel] = 0;
    sums.least[channel] = INFINITY;
    sums.greatest[channel] = -INFINITY;
  }
  int n_tokens = 0;
  for (int i = 0; i < kTilesOfCta; ++i) {
    const int sample = i * kSampleCtas + cta;
    if (sample >= n_sampled) break;
    const int tile = static_cast<int>(static_cast<std::int64_t>(sample) * n_tiles / n_sampled);
    const TileAt at = tile < n_pages ? page_at(seq, first_page + tile, head, is_value)
                                     : rows_at(rows, seq, tile - n_pages, head, is_value);
    octets.load(source.template read<D>(args, at, page_memory), at.n_tokens);
    OctetSums own;
    own.add<D, IsHalf>(octets, at.n_tokens);
    add_up<D>(own, octets, scratch, sums);
    n_tokens += at.n_tokens;
  }
  if (threadIdx.x == 0) sums.n_tokens = n_tokens;

  auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  if (cta == 0) {
    const int channel = static_cast<int>(threadIdx.x) % D;
    float sum = 0;
    float least = INFINITY;
    float greatest = -INFINITY;
    int total = 0;
    for (int i = 0; i < kSampleCtas; ++i) {
      const ChannelSums<D>& part = *cluster.map_shared_rank(&sums, i);
      sum += part.sum[channel];
      least = fminf(least, part.least[channel]);
      greatest = fmaxf(greatest, part.greatest[channel]);
      total += part.n_tokens;
    }
    const float centre = total > 0 ? sum / static_cast<float>(total) : 0;
    const float reach = total > 0 ? fmaxf(greatest - centre, centre - least) : 0;
    const float widest = largest_of_cta(reach, maxima);
    if (threadIdx.x < D) {
      float* channels = args.channels + (static_cast<std::int64_t>(seq) * args.n_kv_heads + head) * 3 * D;
      channels[(is_value ? D : 0) + channel] = centre;
      if (is_value) channels[2 * D + channel] = fmaxf(fmaxf(reach, widest * kLeastOfWidest), kLeastChannel);
    }
  }
  cluster.sync();  // until then others' sums are read
}

}  // namespace kvant::cuda
