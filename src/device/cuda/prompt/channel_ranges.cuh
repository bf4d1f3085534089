// Finds the centres and scales of channels, which all tiles of a sequence's KV head share. Each channel's
// centre, a value near its mean, is subtracted from keys, which moves all scores of a row alike
// (SageAttention, section 4). A centre is also subtracted from values, and added to the outputs, because
// weights add up to one.
//
// Values are also divided by a scale per channel and a scale per tile. Centres and channel scales need not be
// exact, so a sample of a long sequence's tiles suffices.
#pragma once

#include "device/cuda/prompt/tile_rows.cuh"

namespace kvant::cuda {

// Sequences of up to this many tiles are read in full. In longer sequences, only this many evenly spread
// tiles are read. One CTA reads one tile of a sequence, KV head and side.
inline constexpr int kSampledTiles = 8;

// A channel scale is at least this large, even if all samples are equal. A tile's scale is relative to the
// channel scales and is multiplied by up to 2^88 (weigh.cuh). The product stays finite for all half-precision
// values.
inline constexpr float kLeastChannel = 0x1p-28F;
// A channel scale is at least this part of the head's largest scale, which bounds the tiles' scales.
inline constexpr float kLeastOfWidest = 0x1p-10F;

// Holds sums, minima and maxima over the tokens that a CTA has read.
template <int D>
struct ChannelSums {
  float sum[D], least[D], greatest[D];
  int n_tokens;
};

// Divides a tile among threads. Each thread has eight neighbouring channels of every kRowGroups-th token.
template <int D>
struct SampledOctets {
  static constexpr int kOctets = D / 8;
  static constexpr int kRowGroups = kQuantizeThreads / kOctets;
};

// Holds the sums, minima and maxima of each group of rows. The padding avoids bank conflicts.
template <int D>
using SampleScratch = float[3][SampledOctets<D>::kRowGroups][D + 1];

// Names the sample that a CTA reads.
struct SampleAt {
  int sample, seq, head;
  bool is_value;
};
// Returns the sample of this CTA. The grid is [sides][KV heads][sequences * kSampledTiles].
__device__ __forceinline__ SampleAt sample_of_cta() {
  return {static_cast<int>(blockIdx.x) % kSampledTiles, static_cast<int>(blockIdx.x) / kSampledTiles,
          static_cast<int>(blockIdx.y), blockIdx.z != 0};
}

// Adds up a tile's rows into `sums`.
template <int D, bool IsHalf, class Source>
__device__ void add_up(const PromptArgs& args, const Source& source, const TileAt& at,
                       unsigned char* page_memory, SampleScratch<D>& scratch, ChannelSums<D>& sums) {
  using Octets = SampledOctets<D>;
  constexpr int kTokens = Source::template kTokens<D>;
  const int octet = static_cast<int>(threadIdx.x) % Octets::kOctets;
  const int row_group = static_cast<int>(threadIdx.x) / Octets::kOctets;
  float sum[8] = {};
  float least[8], greatest[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    least[i] = INFINITY;
    greatest[i] = -INFINITY;
  }
#pragma unroll 1
  for (int first = 0; first < kTileTokens; first += kTokens) {
    const TileRows rows = source.template read<D>(args, at, page_memory, first);
    const int n_tokens = min(at.n_tokens - first, kTokens);
#pragma unroll 4
    for (int token = row_group; token < n_tokens; token += Octets::kRowGroups) {
      float x[8];
      unpack_octet<IsHalf>(*reinterpret_cast<const uint4*>(rows.data + token * rows.stride + octet * 8), x);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum[i] += x[i];
        least[i] = fminf(least[i], x[i]);
        greatest[i] = fmaxf(greatest[i], x[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Neighbouring threads write to neighbouring columns, which avoids bank conflicts.
    const int column = i * Octets::kOctets + octet;
    scratch[0][row_group][column] = sum[i];
    scratch[1][row_group][column] = least[i];
    scratch[2][row_group][column] = greatest[i];
  }
  __syncthreads();
  for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kQuantizeThreads) {
    const int column = channel % 8 * Octets::kOctets + channel / 8;
    float total = 0;
    float lowest = INFINITY;
    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < Octets::kRowGroups; ++i) {
      total += scratch[0][i][column];
      lowest = fminf(lowest, scratch[1][i][column]);
      highest = fmaxf(highest, scratch[2][i][column]);
    }
    sums.sum[channel] = total;
    sums.least[channel] = lowest;
    sums.greatest[channel] = highest;
  }
}

// Computes the sums of the tile that a CTA samples. The sums stay empty if the sequence has too few tiles.
template <int D, bool IsHalf, class Source>
__device__ __forceinline__ void sample_tile(const PromptArgs& args, const Source& source, const SampleAt& of,
                                            unsigned char* page_memory, SampleScratch<D>& scratch,
                                            ChannelSums<D>& sums) {
  const SequenceRows rows = rows_of_sequence(args, of.seq);
  const int first_page = first_seen_page(args, rows);
  const int n_pages = rows.n_sealed - first_page;
  const int n_tiles = n_pages + rows.row_tiles();
  const int n_sampled = min(n_tiles, kSampledTiles);

  int n_tokens = 0;
  if (of.sample < n_sampled) {
    const int tile = static_cast<int>(static_cast<std::int64_t>(of.sample) * n_tiles / n_sampled);
    const TileAt at = tile < n_pages ? page_at(of.seq, first_page + tile, of.head, of.is_value)
                                     : rows_at(rows, of.seq, tile - n_pages, of.head, of.is_value);
    add_up<D, IsHalf>(args, source, at, page_memory, scratch, sums);
    n_tokens = at.n_tokens;
  } else {
    for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kQuantizeThreads) {
      sums.sum[channel] = 0;
      sums.least[channel] = INFINITY;
      sums.greatest[channel] = -INFINITY;
    }
  }
  if (threadIdx.x == 0) sums.n_tokens = n_tokens;
}

// Combines all samples and stores the ranges of channels. part_of(i) returns the sums of sample i. The order
// of additions is fixed, so the results are reproducible. All threads of a CTA must call this function.
template <int D, class Part>
__device__ __forceinline__ void store_ranges(const PromptArgs& args, int seq, int head, bool is_value,
                                             std::uint32_t (&maxima)[kQuantizeThreads / 32],
                                             const Part& part_of) {
  const int channel = static_cast<int>(threadIdx.x) % D;
  float sum = 0;
  float least = INFINITY;
  float greatest = -INFINITY;
  int total = 0;
#pragma unroll
  for (int i = 0; i < kSampledTiles; ++i) {
    const ChannelSums<D>& part = part_of(i);
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

}  // namespace kvant::cuda
