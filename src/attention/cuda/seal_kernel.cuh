// Encodes full tail pages: the formats' own arithmetic (src/format), operation by operation, so that codes
// come out the same, with the codes in the device's order. A CTA encodes one page. Intrinsics keep the
// compiler from contracting what the formats round twice.
#pragma once

#include "attention/cuda/seal_page.cuh"
#include "attention/cuda/seal_trellis.cuh"

namespace kvant::cuda {

// A uniform grid of 2^bits values.
struct Grid {
  __half scale, zero;
  float reciprocal, last;

  __device__ Grid(float low, float high, int bits) {
    last = static_cast<float>((1 << bits) - 1);
    zero = half_saturated(low);
    scale = half_saturated(__fdiv_rn(fmaxf(0, __fsub_rn(high, __half2float(zero))), last));
    reciprocal = __half2float(scale) != 0 ? __fdiv_rn(1, __half2float(scale)) : 0;
  }
  __device__ std::uint32_t code(float x) const { return code_on(x, __half2float(zero), reciprocal, last); }
  static __device__ std::uint32_t code_on(float x, float zero, float reciprocal, float last) {
    const float position = __fmul_rn(__fsub_rn(x, zero), reciprocal);
    return static_cast<std::uint32_t>(__fadd_rn(fminf(fmaxf(position, 0), last), 0.5F));
  }
};

template <int D>
__device__ void encode_channels(SealPage<D>& page) {
  for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kSealThreads) {
    float low = INFINITY;
    float high = -INFINITY;
    for (int token = 0; token < kTokens; ++token) {
      if (page.left_out(token)) continue;
      low = fminf(low, page.value(token, channel));
      high = fmaxf(high, page.value(token, channel));
    }
    if (low > high) low = high = 0;
    const Grid grid(low, high, page.format.layout.bits);
    page.store_half(channel, grid.scale);
    page.store_half(D + channel, grid.zero);
    for (int token = 0; token < kTokens; ++token)
      page.store_code(token, channel, grid.code(page.value(token, channel)));
  }
}

template <int D>
__device__ void encode_tokens(SealPage<D>& page) {
  for (int token = static_cast<int>(threadIdx.x); token < kTokens; token += kSealThreads) {
    float low = page.value(token, 0);
    float high = low;
    for (int channel = 1; channel < D; ++channel) {
      low = fminf(low, page.value(token, channel));
      high = fmaxf(high, page.value(token, channel));
    }
    const Grid grid(low, high, page.format.layout.bits);
    page.store_half(token, grid.scale);
    page.store_half(kTokens + token, grid.zero);
    for (int channel = 0; channel < D; ++channel)
      page.store_code(token, channel, grid.code(page.value(token, channel)));
  }
}

// TurboAttention's: INT8 by blocks of 64 tokens, then few bits by channel.
template <int D>
__device__ void encode_progressive(SealPage<D>& page) {
  constexpr int kBlock = 64;
  constexpr float kLargest = 119;
  const auto last = static_cast<float>((1 << page.format.layout.bits) - 1);
  for (int block = 0; block < kTokens / kBlock; ++block) {
    if (threadIdx.x == 0) page.shared.largest = 0;
    __syncthreads();
    float largest = 0;
    for (int i = static_cast<int>(threadIdx.x); i < kBlock * D; i += kSealThreads) {
      const int token = block * kBlock + i / D;
      if (!page.left_out(token)) largest = fmaxf(largest, fabsf(page.value(token, i % D)));
    }
    atomicMax(reinterpret_cast<int*>(&page.shared.largest), __float_as_int(largest));  // not negative
    __syncthreads();
    largest = page.shared.largest < 0x1p-100F ? 0 : fminf(page.shared.largest, 3e38F);
    const float reciprocal = largest > 0 ? __fdiv_rn(kLargest, largest) : 0;
    if (threadIdx.x == 0)
      reinterpret_cast<float*>(page.parameters() + 4 * D)[block] = __fdiv_rn(largest, kLargest);
    const auto integer = [&](int token, int channel) {
      const float x = __fmul_rn(page.value(token, channel), reciprocal);
      return static_cast<float>(static_cast<int>(__fadd_rn(fminf(fmaxf(x, -kLargest), kLargest), 128.5F)) -
                                128);
    };
    for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kSealThreads) {
      float low = 127;
      float high = -127;
      for (int token = block * kBlock; token < (block + 1) * kBlock; ++token) {
        if (page.left_out(token)) continue;
        low = fminf(low, integer(token, channel));
        high = fmaxf(high, integer(token, channel));
      }
      float step = 1;
      float zero = 0;
      if (low <= high) {
        step = fmaxf(1, ceilf(__fdiv_rn(__fsub_rn(high, low), last)));
        zero = low;
      }
      page.parameters()[block * D + channel] = static_cast<unsigned char>(step);
      page.parameters()[(2 + block) * D + channel] =
          static_cast<unsigned char>(static_cast<signed char>(zero));
      for (int token = block * kBlock; token < (block + 1) * kBlock; ++token)
        page.store_code(token, channel,
                        Grid::code_on(integer(token, channel), zero, __fdiv_rn(1, step), last));
    }
    __syncthreads();
  }
}

template <int D>
__device__ void encode_lloyd_max(SealPage<D>& page) {
  const int n_levels = 1 << page.format.layout.bits;
  for (int token = static_cast<int>(threadIdx.x); token < kTokens; token += kSealThreads) {
    double energy = 0;
    for (int channel = 0; channel < D; ++channel)
      energy += static_cast<double>(page.value(token, channel)) * page.value(token, channel);
    const double reciprocal = energy > 0 ? sqrt(static_cast<double>(D)) / sqrt(energy) : 0;
    double along = 0;
    double length = 0;
    for (int channel = 0; channel < D; ++channel) {
      const float scaled = static_cast<float>(page.value(token, channel) * reciprocal);
      std::uint32_t code = 0;
      for (int i = 0; i + 1 < n_levels; ++i) code += scaled > page.format.boundaries[i] ? 1 : 0;
      page.store_code(token, channel, code);
      along += static_cast<double>(page.value(token, channel)) * page.format.levels[code];
      length += static_cast<double>(page.format.levels[code]) * page.format.levels[code];
    }
    page.store_half(
        token, along > 0 ? half_saturated(static_cast<float>(fmin(along / length, 65504.0))) : __half(0));
  }
}

// The nearest centroids.
template <int Channels, int D>
__device__ void encode_vectors(SealPage<D>& page) {
  const auto* centroids = reinterpret_cast<const __half2*>(static_cast<const __half*>(page.format.codebooks) +
                                                           page.head * page.format.codebook_stride);
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * (D / Channels); i += kSealThreads) {
    const int token = i / (D / Channels);
    const int channel = i % (D / Channels) * Channels;
    float x[Channels];
    for (int j = 0; j < Channels; ++j) x[j] = page.value(token, channel + j);
    float best = -INFINITY;
    std::uint32_t code = 0;
    for (int c = 0; c < 1 << page.format.layout.bits; ++c) {
      float length = 0;
      float along = 0;
      for (int j = 0; j < Channels; j += 2) {
        const float2 y = __half22float2(centroids[(c * Channels + j) / 2]);
        length = fmaf(y.x, y.x, fmaf(y.y, y.y, length));
        along = fmaf(y.x, x[j], fmaf(y.y, x[j + 1], along));
      }
      const float score = along - 0.5F * length;
      if (score > best) {
        best = score;
        code = c;
      }
    }
    page.store_code(token, channel, code);
  }
}

template <int D>
__device__ void encode_any_vectors(SealPage<D>& page) {
  switch (page.format.layout.channels) {
    case 2:
      return encode_vectors<2>(page);
    case 4:
      return encode_vectors<4>(page);
    default:
      return encode_vectors<8>(page);
  }
}

template <int D>
__global__ void __launch_bounds__(kSealThreads) seal_kernel(const __grid_constant__ SealArgs args) {
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& shared = *reinterpret_cast<SealShared<D>*>(bytes);
  const int seq = blockIdx.x;
  const int head = args.heads.at[blockIdx.y];
  const auto side = static_cast<PageSide>(blockIdx.z);
  if (args.tail_page[seq] < 0) return;
  const auto address = [&](const PageSource& source, int page) {
    const int id = source.table[seq * source.seq_stride + head * source.head_stride +
                                blockIdx.z * source.side_stride + page];
    return const_cast<unsigned char*>(source.pool + id * source.page_stride + head * source.head_offset +
                                      blockIdx.z * source.side_offset);
  };
  const int target = args.sealed_page[seq];
  const auto* tail = reinterpret_cast<const __nv_bfloat16*>(address(args.tail, args.tail_page[seq]));
  SealPage<D> page{shared, args.sides[blockIdx.z], side, head};
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * D; i += kSealThreads)
    page.value(i / D, i % D) = __bfloat162float(tail[plain_index(side, D, i / D, i % D)]);
  for (int i = static_cast<int>(threadIdx.x); i < page.format.page_bytes / 4; i += kSealThreads)
    shared.page[i] = 0;
  if (threadIdx.x < kTokens / 32) {
    const int first = static_cast<int>(threadIdx.x) * 32;
    std::uint32_t word = 0;
    if (args.masks != nullptr)
      word = reinterpret_cast<const std::uint32_t*>(args.masks + seq * args.mask_seq_stride +
                                                    head * args.mask_head_stride + target)[threadIdx.x];
    const int sink = target == 0 ? min(max(args.sink - first, 0), 32) : 0;
    shared.left_out[threadIdx.x] = word | (sink == 32 ? ~0U : (1U << sink) - 1);
  }
  __syncthreads();
  switch (page.format.encoding) {
    case Encoding::channel_grid:
      encode_channels(page);
      break;
    case Encoding::token_grid:
      encode_tokens(page);
      break;
    case Encoding::progressive:
      encode_progressive(page);
      break;
    case Encoding::lloyd_max:
      encode_lloyd_max(page);
      break;
    case Encoding::trellis:
      encode_any_trellis(page, *reinterpret_cast<TrellisShared<D>*>(bytes + sizeof(SealShared<D>)));
      break;
    case Encoding::vectors:
      encode_any_vectors(page);
      break;
  }
  __syncthreads();
  auto* out = reinterpret_cast<std::uint32_t*>(address(args.sealed, target));
  for (int i = static_cast<int>(threadIdx.x); i < page.format.page_bytes / 4; i += kSealThreads)
    out[i] = shared.page[i];
}

}  // namespace kvant::cuda
