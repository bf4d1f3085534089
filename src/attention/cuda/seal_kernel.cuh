// Encodes full tail pages: the formats' own arithmetic (src/format), operation by operation, so that codes
// come out the same, with the codes in the device's order. A CTA encodes one page. Intrinsics keep the
// compiler from contracting what the formats round twice.
#pragma once

#include "attention/cuda/seal_page.cuh"

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

// first_side: of the grid's sides.
template <int D>
__global__ void __launch_bounds__(kSealThreads)
    seal_kernel(const __grid_constant__ SealArgs args, int first_side) {
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& shared = *reinterpret_cast<SealShared<D>*>(bytes);
  const int head = args.heads.at[blockIdx.y];
  const int side_index = first_side + static_cast<int>(blockIdx.z);
  const auto side = static_cast<PageSide>(side_index);
  DuePage due;
  if (!find_due_page(args, blockIdx.x, head, side_index, &due)) return;
  SealPage<D> page{shared, args.sides[side_index], side, head};
  const auto* tail = reinterpret_cast<const __nv_bfloat16*>(due.tail);
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * D; i += kSealThreads)
    shared.values[i / D * SealShared<D>::kRow + i % D] = tail[plain_index(side, D, i / D, i % D)];
  for (int i = static_cast<int>(threadIdx.x); i < page.format.page_bytes / 4; i += kSealThreads)
    shared.page[i] = 0;
  if (threadIdx.x < kTokens / 32)
    shared.left_out[threadIdx.x] = left_out_tokens(args, due, head, static_cast<int>(threadIdx.x));
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
    case Encoding::vectors:
      break;  // have kernels of their own
  }
  __syncthreads();
  auto* out = reinterpret_cast<std::uint32_t*>(due.sealed);
  for (int i = static_cast<int>(threadIdx.x); i < page.format.page_bytes / 4; i += kSealThreads)
    out[i] = shared.page[i];
}

}  // namespace kvant::cuda
