// Vector-quantized pages: the nearest centroids of all sub-vectors, which are those with the greatest
// c.x - |c|^2 / 2. Tensor cores compute these scores for 16 centroids and 8 vectors at a time; a lane keeps
// the greatest of each vector's, and in which block of centroids it was. Those of the block that the lane has
// seen are then scored once more, in F32, as src/format does it.
//
// A CTA keeps the codebook of a head in shared memory and works through pages of that head. Where codebooks
// are small, several CTAs share a multiprocessor: while one sets up a page, others search.
#pragma once

#include "attention/cuda/ptx.cuh"
#include "attention/cuda/seal_page.cuh"

namespace kvant::cuda {

inline constexpr int kVectorThreads = 512;  // of a multiprocessor
inline constexpr int kVectorTiles = 8;      // of 8 vectors, that a warp searches together
inline constexpr int kBlockTiles = 16;      // of 16 centroids: a block
inline constexpr int kTileCentroids = 16;
inline constexpr int kLaneVectors = 2 * kVectorTiles;  // whose scores a lane sees
inline constexpr int kWarpVectors = 8 * kVectorTiles;

template <int D>
struct alignas(16) VectorShared {
  static constexpr int kRow = D + 2;  // spreads tokens over banks
  __nv_bfloat16 values[kTokens * kRow];
  std::uint32_t page[kTokens * (D / 2 * 8 + 16) / 32];  // codes of 8 bits for 2 channels, or fewer; gains
  float largest, longest;                               // |x| of the page's values, |c| of the centroids
  bool has_units;                                       // whether unit vectors are searched for
  double reciprocals[kTokens];                          // of tokens' lengths, if so

  // A channel of a token, or of its unit vector.
  __device__ float value(int token, int channel) const {
    const float x = __bfloat162float(values[token * kRow + channel]);
    return has_units ? static_cast<float>(x * reciprocals[token]) : x;
  }

  // And behind it: what each lane adds to a tile's scores [n / 16][8], lengths |c|^2 [n], then centroids
  // [n][channels] (half).
  __device__ float4* biases() { return reinterpret_cast<float4*>(this + 1); }
  __device__ float* lengths(int n) { return reinterpret_cast<float*>(biases() + n / 2); }
  __device__ __half* centroids(int n) { return reinterpret_cast<__half*>(lengths(n) + n); }
  static int bytes(int n, int channels) {
    return static_cast<int>(sizeof(VectorShared)) + n * (8 + 4 + 2 * channels);
  }
};

// c[16 x 8] = a[16 x 8] b[8 x 8] + biases; half-precision factors.
__device__ __forceinline__ void score_tile(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b,
                                           const float4& bias) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(b), "f"(bias.x), "f"(bias.y), "f"(bias.z), "f"(bias.w));
}

template <int D>
__device__ void load_codebook(VectorShared<D>& shared, const PageEncoding& format, int head) {
  const int channels = format.layout.channels;
  const int n = 1 << format.layout.bits;
  const auto* from = static_cast<const __half*>(format.codebooks) + head * format.codebook_stride;
  __half* centroids = shared.centroids(n);
  if (threadIdx.x == 0) shared.longest = 0;
  __syncthreads();
  float longest = 0;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += static_cast<int>(blockDim.x)) {
    float squares = 0;
    for (int j = 0; j < channels; ++j) {
      const __half x = from[c * channels + j];
      centroids[c * channels + j] = x;
      squares += __half2float(x) * __half2float(x);
    }
    shared.lengths(n)[c] = squares;
    longest = fmaxf(longest, squares);
  }
  atomicMax(reinterpret_cast<int*>(&shared.longest), __float_as_int(sqrtf(longest)));  // not negative
}

// What vectors are multiplied by: a power of two, so that the page's largest value is near the end of half
// precision's range, and all that matter are exact in it.
__device__ __forceinline__ float vector_unit(float largest) {
  int exponent = 0;
  frexpf(largest, &exponent);
  return ldexpf(1, min(15 - exponent, 60));
}

// Biases of scores in `unit`; scores must be positive to be compared as integers.
template <int Channels, int D>
__device__ void set_biases(VectorShared<D>& shared, int n, float unit) {
  const float most = shared.longest * (shared.largest * sqrtf(Channels) + 0.5F * shared.longest);
  const float offset = unit * most * 1.001F + 1e-30F;
  for (int i = static_cast<int>(threadIdx.x); i < n / 2; i += static_cast<int>(blockDim.x)) {
    const float* lengths = shared.lengths(n) + i / 8 * kTileCentroids + i % 8;
    const float upper = fmaf(lengths[0], -0.5F * unit, offset);
    const float lower = fmaf(lengths[8], -0.5F * unit, offset);
    shared.biases()[i] = {upper, upper, lower, lower};
  }
}

// The greatest scores that a lane has seen of its vectors, as integers, and in which block.
struct BestBlocks {
  int scores[kLaneVectors];
  int blocks[kLaneVectors];
};

// vectors: the B operand of each tile.
template <int Channels, int D>
__device__ void search_blocks(VectorShared<D>& shared, int n, const std::uint32_t (&vectors)[kVectorTiles],
                              BestBlocks& best) {
  const int lane = threadIdx.x % kLanes;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto* pairs = reinterpret_cast<const std::uint32_t*>(shared.centroids(n));
  const auto pair = [&](int centroid) { return 2 * t < Channels ? pairs[centroid * (Channels / 2) + t] : 0; };
  int greatest[kLaneVectors];
#pragma unroll
  for (int i = 0; i < kLaneVectors; ++i) greatest[i] = best.scores[i] = best.blocks[i] = 0;
  for (int block = 0; block < n / (kBlockTiles * kTileCentroids); ++block) {
#pragma unroll 1
    for (int tile = 0; tile < kBlockTiles; ++tile) {
      const int first = (block * kBlockTiles + tile) * kTileCentroids + g;
      const std::uint32_t a0 = pair(first);
      const std::uint32_t a1 = pair(first + 8);
      const float4 bias = shared.biases()[(block * kBlockTiles + tile) * 8 + g];
#pragma unroll
      for (int j = 0; j < kVectorTiles; ++j) {
        float c[4];
        score_tile(c, a0, a1, vectors[j], bias);
        greatest[2 * j] = __vimax3_s32(greatest[2 * j], __float_as_int(c[0]), __float_as_int(c[2]));
        greatest[2 * j + 1] = __vimax3_s32(greatest[2 * j + 1], __float_as_int(c[1]), __float_as_int(c[3]));
      }
    }
#pragma unroll
    for (int i = 0; i < kLaneVectors; ++i) {
      if (greatest[i] > best.scores[i]) best.blocks[i] = block;
      best.scores[i] = greatest[i];
    }
  }
}

// Lanes that have seen the same vectors (those of one t) agree on their best blocks, and divide the vectors:
// afterwards the first two entries are those of tile g. The blocks become 8 * block + g of the lane that has
// seen the greatest score.
__device__ __forceinline__ void divide_vectors(BestBlocks& best) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int& block : best.blocks) block = block * 8 + lane / 4;
#pragma unroll
  for (int step = 0; step < 3; ++step) {
    const int kept = kLaneVectors >> (step + 1);
    const int other_lane = 16 >> step;
    const bool upper = (lane & other_lane) != 0;
#pragma unroll
    for (int i = 0; i < kLaneVectors / 2; ++i) {
      if (i >= kept) break;
      const int score = __shfl_xor_sync(~0U, upper ? best.scores[i] : best.scores[i + kept], other_lane);
      const int block = __shfl_xor_sync(~0U, upper ? best.blocks[i] : best.blocks[i + kept], other_lane);
      if (upper) {
        best.scores[i] = best.scores[i + kept];
        best.blocks[i] = best.blocks[i + kept];
      }
      if (score > best.scores[i] || (score == best.scores[i] && block < best.blocks[i])) {
        best.scores[i] = score;
        best.blocks[i] = block;
      }
    }
  }
}

// The best of the centroids that one lane has seen of a block.
template <int Channels, int D>
__device__ int search_block(VectorShared<D>& shared, int n, int lane_of_block, const float (&x)[Channels]) {
  const auto* pairs = reinterpret_cast<const __half2*>(shared.centroids(n));
  const int first = lane_of_block / 8 * (kBlockTiles * kTileCentroids) + lane_of_block % 8;
  float best = -INFINITY;
  int code = first;
#pragma unroll 4
  for (int i = 0; i < 2 * kBlockTiles; ++i) {
    const int centroid = first + 8 * i;
    float along = 0;
#pragma unroll
    for (int j = 0; j < Channels / 2; ++j) {
      const float2 c = __half22float2(pairs[centroid * (Channels / 2) + j]);
      along = fmaf(c.x, x[2 * j], fmaf(c.y, x[2 * j + 1], along));
    }
    const float score = fmaf(shared.lengths(n)[centroid], -0.5F, along);
    code = score > best ? centroid : code;
    best = fmaxf(score, best);
  }
  return code;
}

template <int Channels, int D>
__device__ void encode_vectors(VectorShared<D>& shared, const CodeLayout& layout, PageSide side) {
  constexpr int kOfToken = D / Channels;  // vectors
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
  const int n_warps = blockDim.x / kLanes;
  const int g = lane / 4;
  const int t = lane % 4;
  const int n = 1 << layout.bits;
  const float unit = vector_unit(shared.largest);
  set_biases<Channels>(shared, n, unit);
  __syncthreads();
  for (int first = warp * kWarpVectors; first < kTokens * kOfToken; first += n_warps * kWarpVectors) {
    std::uint32_t vectors[kVectorTiles];
#pragma unroll
    for (int j = 0; j < kVectorTiles; ++j) {
      const int vector = first + 8 * j + g;
      const int token = vector / kOfToken;
      const int channel = vector % kOfToken * Channels + 2 * t % Channels;
      vectors[j] = 2 * t < Channels ? pack_half2(shared.value(token, channel) * unit,
                                                 shared.value(token, channel + 1) * unit)
                                    : 0;
    }
    BestBlocks best;
    search_blocks<Channels>(shared, n, vectors, best);
    divide_vectors(best);
#pragma unroll
    for (int i = 0; i < kLaneVectors / 8; ++i) {
      const int vector = first + 8 * g + 2 * t + i;
      const int token = vector / kOfToken;
      const int channel = vector % kOfToken * Channels;
      float x[Channels];
#pragma unroll
      for (int j = 0; j < Channels; ++j) x[j] = shared.value(token, channel + j);
      store_code<D>(shared.page, layout, side, token, channel,
                    search_block<Channels>(shared, n, best.blocks[i], x));
    }
  }
}

// Lengths of tokens, by which those of gain-shape formats are divided, and the largest value that remains.
template <int D>
__device__ void measure_tokens(VectorShared<D>& shared, bool has_gains) {
  if (threadIdx.x == 0) shared.has_units = has_gains;
  for (int token = static_cast<int>(threadIdx.x); has_gains && token < kTokens;
       token += static_cast<int>(blockDim.x)) {
    double squares = 0;
    for (int channel = 0; channel < D; ++channel) {
      const double x = __bfloat162float(shared.values[token * VectorShared<D>::kRow + channel]);
      squares += x * x;
    }
    shared.reciprocals[token] = squares > 0 ? 1 / sqrt(squares) : 0;
  }
  __syncthreads();
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * D; i += static_cast<int>(blockDim.x))
    largest = fmaxf(largest, fabsf(shared.value(i / D, i % D)));
  atomicMax(reinterpret_cast<int*>(&shared.largest), __float_as_int(largest));  // not negative
}

// The least squares gains of tokens for the centroids that have been found.
template <int Channels, int D>
__device__ void store_gains(VectorShared<D>& shared, const CodeLayout& layout, PageSide side) {
  const __half* centroids = shared.centroids(1 << layout.bits);
  auto* gains =
      reinterpret_cast<__half*>(reinterpret_cast<unsigned char*>(shared.page) + code_bytes(layout, D));
  for (int token = static_cast<int>(threadIdx.x); token < kTokens; token += static_cast<int>(blockDim.x)) {
    double along = 0;
    double squares = 0;
    for (int channel = 0; channel < D; ++channel) {
      const int first = channel / Channels * Channels;
      const std::uint32_t code = load_code<D>(shared.page, layout, side, token, first);
      const double c = __half2float(centroids[code * Channels + channel - first]);
      const double x = __bfloat162float(shared.values[token * VectorShared<D>::kRow + channel]);
      along += x * c;
      squares += c * c;
    }
    gains[token] = along > 0 ? half_saturated(static_cast<float>(fmin(along / squares, 65504.0))) : __half(0);
  }
}

template <int Channels, int D>
__global__ void __launch_bounds__(kVectorThreads, 1)
    seal_vectors_kernel(const __grid_constant__ SealArgs args, int first_side) {
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& shared = *reinterpret_cast<VectorShared<D>*>(bytes);
  const int side = first_side + static_cast<int>(blockIdx.z);
  const int head = args.heads.at[blockIdx.y];
  const PageEncoding& format = args.sides[side];
  bool has_codebook = false;
  for (int i = static_cast<int>(blockIdx.x); i < args.n_seqs * args.most_pages;
       i += static_cast<int>(gridDim.x)) {
    DuePage due;
    if (!find_due_page(args, i, head, side, &due)) continue;
    if (!has_codebook) load_codebook(shared, format, head);
    has_codebook = true;
    if (threadIdx.x == 0) shared.largest = 0;
    __syncthreads();
    load_rows<D>(due.tail, static_cast<PageSide>(side), shared.values, VectorShared<D>::kRow);
    for (int j = static_cast<int>(threadIdx.x); j < format.page_bytes / 4; j += static_cast<int>(blockDim.x))
      shared.page[j] = 0;
    __syncthreads();
    const bool has_gains = format.stored.factor == TokenFactor::half;
    measure_tokens(shared, has_gains);
    __syncthreads();
    encode_vectors<Channels>(shared, format.layout, static_cast<PageSide>(side));
    __syncthreads();
    if (has_gains) {
      store_gains<Channels>(shared, format.layout, static_cast<PageSide>(side));
      __syncthreads();
    }
    for (int j = static_cast<int>(threadIdx.x); j < format.page_bytes / 4; j += static_cast<int>(blockDim.x))
      reinterpret_cast<std::uint32_t*>(due.sealed)[j] = shared.page[j];
    __syncthreads();
  }
}

}  // namespace kvant::cuda
