// Encodes uniform grids and numbers with a scale per token. The encoders repeat the arithmetic of src/format
// operation by operation, so GPU and CPU give the same codes. Intrinsics keep the compiler from fusing
// operations that the formats round separately.
#pragma once

#include "device/cuda/seal/seal_page.cuh"
#include "device/cuda/seal/seal_whole_grids.cuh"
#include "device/cuda/seal/uniform_grid.cuh"

namespace kvant::cuda {

// Describes which codes lie in one word of a lane's stream, for layouts of numbers (CodeOrder::planes, and
// 8-bit codes of CodeOrder::pairs).
struct CodeWord {
  int lane;
  int fragment;   // first fragment with codes in the word
  int fragments;  // 1, 2 or 4 fragments with codes in the word
  int half;       // half of a fragment's contraction indices for 8-bit codes, or -1
  int width;      // number of bits of a code in the word
  int first_bit;  // lowest of these bits within the code

  __device__ CodeWord(int bits, int word) {
    lane = word / 4 % kLanes;
    const int of_stream = word / (4 * kLanes) * 4 + word % 4;
    half = -1;
    first_bit = 0;
    if (bits == 8) {
      width = 8;
      fragment = of_stream / 2;
      fragments = 1;
      half = of_stream % 2;
      return;
    }
    int of_run = of_stream % (2 * bits);
    for (width = 4;; width /= 2) {
      if ((bits & width) == 0) continue;
      if (of_run < 2 * width) break;
      of_run -= 2 * width;
      first_bit += width;
    }
    fragments = 4 / width;
    fragment = of_stream / (2 * bits) * kRun + of_run * fragments;
  }
};

// Fills the words of codes in the layout of page_layout.h. code(token, channel) returns each code.
template <int D, class Code>
__device__ void store_codes(SealPage<D>& page, const Code& code) {
  const int bits = page.format.layout.bits;
  const bool is_key = page.side == PageSide::key;
  constexpr int kOwn = block_dim(D);
  const int m_tiles = is_key ? kTokenTiles : kOwn / 16;
  const int block_words = kPageTokens * kOwn * bits / 32;
  for (int i = static_cast<int>(threadIdx.x); i < code_blocks(D) * block_words; i += kSealThreads) {
    const int block = code_blocks(D) == 1 ? 0 : i / block_words;
    const CodeWord word(bits, i - block * block_words);
    const std::uint32_t mask = (1U << word.width) - 1;
    std::uint32_t packed = 0;
    for (int f = 0; f < word.fragments; ++f) {
      const int k_tile = (word.fragment + f) / m_tiles;
      const int m_tile = (word.fragment + f) % m_tiles;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (word.half >= 0 && j / 2 != word.half) continue;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int token = is_key
                                ? m_tile / 2 * 32 + word.lane / 4 * 4 + m_tile % 2 * 2 + row
                                : k_tile / 2 * 32 + (word.lane % 4 * 2 + j % 2) * 4 + k_tile % 2 * 2 + j / 2;
          const int of_block = is_key ? word.lane % 4 * (kOwn / 4) + 4 * k_tile + j
                                      : word.lane / 4 * (kOwn / 8) + 2 * m_tile + row;
          const int channel = channel_of_block(page.side, D, {block, of_block});
          const int at =
              word.half >= 0 ? row * 16 + j % 2 * 8 : j % 2 * 16 + j / 2 * 8 + (2 * f + row) * word.width;
          packed |= (code(token, channel) >> word.first_bit & mask) << at;
        }
      }
    }
    page.words[i] = packed;
  }
}

template <int D>
__device__ void encode_channels(SealPage<D>& page) {
  if (encode_whole_grids(page)) return;
  const int bits = page.format.layout.bits;
  const int group = page.format.stored.group;
  const int blocks = kPageTokens / group;
  for (int i = static_cast<int>(threadIdx.x); i < blocks * D; i += kSealThreads) {
    const int channel = i % D;
    const int first = i / D * group;
    float low = INFINITY;
    float high = -INFINITY;
    for (int token = first; token < first + group; ++token) {
      if (page.left_out(token)) continue;
      low = fminf(low, page.value(token, channel));
      high = fmaxf(high, page.value(token, channel));
    }
    if (low > high) low = high = 0;
    const ScaleAndZero fitted(low, high, bits);
    page.store_half(i, fitted.scale);
    page.store_half(blocks * D + i, fitted.zero);
    page.shared.grids[i] = fitted.grid(bits).stored();
  }
  __syncthreads();
  store_codes(page, [&](int token, int channel) {
    return UniformGrid(page.shared.grids[token / group * D + channel], bits).code(page.value(token, channel));
  });
}

// Returns the scale of a symmetric grid (src/format/tok.cc). For codes of 1 bit the scale is the mean
// magnitude. With 8 bits the scale makes codes symmetric around 0, so codes can be negated. With other widths
// the value of largest magnitude gets the lowest code.
template <int D>
__device__ __half symmetric_scale(const SealPage<D>& page, int token, int begin, int end, float low,
                                  float high) {
  const int bits = page.format.layout.bits;
  if (bits == 1) {
    double sum = 0;
    for (int channel = begin; channel < end; ++channel) sum += fabsf(page.value(token, channel));
    return half_saturated(static_cast<float>(sum / (end - begin)));
  }
  const float extreme = high > -low ? high : low;
  return half_saturated(bits == 8 ? __fdiv_rn(fabsf(extreme), 127)
                                  : __fdiv_rn(-extreme, static_cast<float>(1 << (bits - 1))));
}

template <int D>
__device__ void encode_tokens(SealPage<D>& page) {
  if (encode_whole_grids(page)) return;
  const PageFormat& stored = page.format.stored;
  const int bits = stored.layout.bits;
  const int groups = stored.groups(D);
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * groups; i += kSealThreads) {
    const int token = i / groups;
    const int begin = i % groups * stored.group;
    const int end = min(begin + stored.group, D);
    float low = page.value(token, begin);
    float high = low;
    for (int channel = begin + 1; channel < end; ++channel) {
      low = fminf(low, page.value(token, channel));
      high = fmaxf(high, page.value(token, channel));
    }
    ScaleAndZero fitted(low, high, bits);
    UniformGrid grid = fitted.grid(bits);
    if (stored.symmetric) {
      fitted.scale = symmetric_scale(page, token, begin, end, low, high);
      const float scale = __half2float(fitted.scale);
      grid = UniformGrid(bits == 1 ? 2 * scale : scale, -scale * static_cast<float>(1 << (bits - 1)), bits);
    } else {
      page.store_half(kPageTokens * groups + i, fitted.zero);
    }
    page.store_half(i, fitted.scale);
    page.shared.grids[i] = grid.stored();
  }
  __syncthreads();
  store_codes(page, [&](int token, int channel) {
    const int of_token = groups == 1 ? 0 : channel / stored.group;
    return UniformGrid(page.shared.grids[token * groups + of_token], bits).code(page.value(token, channel));
  });
}

// Rounds |x| <= 448 to the nearest e4m3 number, and halves to even, as src/format/e4m3.h does.
__device__ inline std::uint32_t e4m3_from_float(float x) {
  constexpr std::uint32_t kSmallestNormal = 0x3c800000;  // the smallest normal e4m3 number, 2^-6
  const std::uint32_t bits = __float_as_uint(x);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t exponent = max(magnitude & 0x7f800000U, kSmallestNormal);
  const float unit = __uint_as_float(exponent + (20U << 23));
  const float rounded = __fadd_rn(__uint_as_float(magnitude), unit);
  const std::uint32_t mantissa = __float_as_uint(rounded) - __float_as_uint(unit);
  return ((bits >> 24) & 0x80U) | min(((exponent - kSmallestNormal) >> 20) + mantissa, 0x7eU);
}

template <int D>
__device__ void encode_e4m3(SealPage<D>& page) {
  constexpr float kMax = 448;
  for (int token = static_cast<int>(threadIdx.x); token < kPageTokens; token += kSealThreads) {
    float largest = 0;
    for (int channel = 0; channel < D; ++channel) largest = fmaxf(largest, fabsf(page.value(token, channel)));
    largest = largest < 0x1p-100F ? 0 : fminf(largest, 3.4e38F);
    reinterpret_cast<float*>(page.parameters())[token] = __fdiv_rn(largest, kMax);
    page.shared.grids[token] = {0, largest > 0 ? __fdiv_rn(kMax, largest) : 0};
  }
  __syncthreads();
  store_codes(page, [&](int token, int channel) {
    const float x = __fmul_rn(page.value(token, channel), page.shared.grids[token].y);
    return e4m3_from_float(fminf(fmaxf(x, -kMax), kMax));
  });
}

// Holds the step and the zero of a channel whose integers lie in [low, high]. In a page of prog<B>-paper
// (as_printed) the zero is a number of steps (src/format/prog.cc).
struct StepAndZero {
  float step, zero;

  __device__ StepAndZero(float low, float high, float last, bool as_printed, PageSide side) {
    step = 1;
    zero = 0;
    if (low > high) return;  // all tokens are left out
    const float exact = __fdiv_rn(__fsub_rn(high, low), last);
    const auto rounded = [&](float x) {
      return side == PageSide::key ? floorf(__fadd_rn(x, 0.5F)) : ceilf(x);
    };
    step = fmaxf(1, as_printed ? rounded(exact) : ceilf(exact));
    zero = as_printed ? rounded(__fdiv_rn(low, step)) : low;
  }
};

// Finds the largest magnitude in each block of 64 tokens, except in tokens that are left out.
template <int D>
__device__ void find_largest(SealPage<D>& page) {
  float largest[2] = {};
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    for (int i = static_cast<int>(threadIdx.x); i < kPageTokens / 2 * D; i += kSealThreads) {
      const int token = block * kPageTokens / 2 + i / D;
      if (!page.left_out(token)) largest[block] = fmaxf(largest[block], fabsf(page.value(token, i % D)));
    }
    atomicMax(reinterpret_cast<int*>(&page.shared.largest[block]),
              // Magnitudes are not negative, so their bits compare like integers.
              static_cast<int>(__reduce_max_sync(~0U, __float_as_uint(largest[block]))));
  }
}

// Encodes TurboAttention's pages (src/format/prog.cc). Blocks of 64 tokens become INT8, and these integers
// become codes of few bits by channel.
template <int D>
__device__ void encode_progressive(SealPage<D>& page) {
  constexpr int kBlock = 64;
  constexpr int kBlocks = kPageTokens / kBlock;
  constexpr float kLargest = 119;
  const int bits = page.format.layout.bits;
  const bool as_printed = page.format.stored.as_printed;
  find_largest(page);
  __syncthreads();
  const auto largest_of = [&](int block) {
    return page.shared.largest[block] < 0x1p-100F ? 0 : fminf(page.shared.largest[block], 3e38F);
  };
  float reciprocals[kBlocks];
  for (int block = 0; block < kBlocks; ++block)
    reciprocals[block] = largest_of(block) > 0 ? __fdiv_rn(kLargest, largest_of(block)) : 0;
  if (threadIdx.x < kBlocks)
    reinterpret_cast<float*>(page.parameters() + 4 * D)[threadIdx.x] =
        __fdiv_rn(largest_of(static_cast<int>(threadIdx.x)), kLargest);
  const auto integer = [&](int token, int channel) {
    const float x = __fmul_rn(page.value(token, channel), reciprocals[token >= kBlock ? 1 : 0]);
    return static_cast<float>(static_cast<int>(__fadd_rn(fminf(fmaxf(x, -kLargest), kLargest), 128.5F)) -
                              128);
  };
  for (int i = static_cast<int>(threadIdx.x); i < kBlocks * D; i += kSealThreads) {
    const int channel = i % D;
    const int first = i / D * kBlock;
    float low = 127;
    float high = -127;
    for (int token = first; token < first + kBlock; ++token) {
      if (page.left_out(token)) continue;
      low = fminf(low, integer(token, channel));
      high = fmaxf(high, integer(token, channel));
    }
    const StepAndZero fitted(low, high, static_cast<float>((1 << bits) - 1), as_printed, page.side);
    page.parameters()[i] = static_cast<unsigned char>(fitted.step);
    page.parameters()[kBlocks * D + i] = static_cast<unsigned char>(static_cast<signed char>(fitted.zero));
    page.shared.grids[i] =
        UniformGrid(fitted.step, as_printed ? fitted.zero * fitted.step : fitted.zero, bits).stored();
  }
  __syncthreads();
  store_codes(page, [&](int token, int channel) {
    return UniformGrid(page.shared.grids[token / kBlock * D + channel], bits).code(integer(token, channel));
  });
}

}  // namespace kvant::cuda
