// Decodes codes of single values to half-precision fragments, for the generic kernel. A run is eight
// consecutive fragments in the order of the page. For keys, a run is a contraction tile. For values, a run is
// a tile of 16 tokens. With heads of 64 channels it is two such tiles, and with heads of 256 channels half a
// tile.
#pragma once

#include "device/cuda/page/any_page.h"
#include "device/cuda/pairs/weights.cuh"

namespace kvant::cuda {

using Fragments = std::uint32_t[kRun][4];

// Each run has this many m tiles of values.
template <int D>
inline constexpr int kRunMTiles = D / 16 < kRun ? D / 16 : kRun;

// Holds the words of a lane's stream that contain a run.
template <int Words>
struct RunWords {
  std::uint32_t words[Words + 1];

  __device__ __forceinline__ RunWords(const unsigned char* codes, int run, int lane) {
    if constexpr (Words % 4 == 0) {
      const auto* pieces = reinterpret_cast<const uint4*>(codes) + run * (Words / 4) * kLanes + lane;
#pragma unroll
      for (int i = 0; i < Words / 4; ++i) {
        const uint4 piece = pieces[i * kLanes];
        words[4 * i] = piece.x;
        words[4 * i + 1] = piece.y;
        words[4 * i + 2] = piece.z;
        words[4 * i + 3] = piece.w;
      }
    } else {
      const auto* halves = reinterpret_cast<const uint2*>(codes);
#pragma unroll
      for (int i = 0; i < Words / 2; ++i) {
        const int half = run * (Words / 2) + i;
        const uint2 two = halves[(half / 2 * kLanes + lane) * 2 + half % 2];
        words[2 * i] = two.x;
        words[2 * i + 1] = two.y;
      }
    }
    words[Words] = 0;
  }
};

// Converts integers up to 1023 in both halves of x to half-precision numbers.
__device__ __forceinline__ std::uint32_t half2_from_numbers(std::uint32_t x) {
  constexpr std::uint32_t k1024 = 0x64006400;  // half-precision 1024, whose lowest bit counts 1
  return subtract_half2(x | k1024, k1024);
}

// Extracts the bits of a register from a plane of `Width` bits, shifted to bit `to` of both halves.
template <int Width>
__device__ __forceinline__ std::uint32_t plane_bits(const std::uint32_t* words, int fragment, int reg,
                                                    int to) {
  constexpr int kPerWord = 4 / Width;
  constexpr std::uint32_t kMask = ((1U << Width) - 1) * 0x00010001U;
  const int from = reg / 2 * 8 + (fragment % kPerWord * 2 + reg % 2) * Width;
  const std::uint32_t word = words[fragment / kPerWord];
  return (from >= to ? word >> (from - to) : word << (to - from)) & (kMask << to);
}

template <int Bits>
__device__ __forceinline__ void read_planes(const unsigned char* codes, int run, int lane, Fragments& a) {
  const RunWords<2 * Bits> run_words(codes, run, lane);
#pragma unroll
  for (int f = 0; f < kRun; ++f) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      std::uint32_t x = 0;
      int low = 0;  // number of bits that wider planes have already provided
      if constexpr ((Bits & 4) != 0) {
        x |= plane_bits<4>(run_words.words, f, reg, low);
        low += 4;
      }
      if constexpr ((Bits & 2) != 0) {
        x |= plane_bits<2>(run_words.words + 2 * low, f, reg, low);
        low += 2;
      }
      if constexpr ((Bits & 1) != 0) x |= plane_bits<1>(run_words.words + 2 * low, f, reg, low);
      a[f][reg] = half2_from_numbers(x);
    }
  }
}

__device__ __forceinline__ void read_bytes(const unsigned char* codes, int run, int lane, Fragments& a) {
  const RunWords<16> run_words(codes, run, lane);
#pragma unroll
  for (int f = 0; f < kRun; ++f) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const std::uint32_t word = run_words.words[2 * f + reg / 2];
      a[f][reg] = half2_from_numbers(__byte_perm(word, 0, reg % 2 == 0 ? 0x4140 : 0x4342));
    }
  }
}

__device__ __forceinline__ void read_e4m3(const unsigned char* codes, int run, int lane, Fragments& a) {
  const RunWords<16> run_words(codes, run, lane);
#pragma unroll
  for (int f = 0; f < kRun; ++f) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg)
      a[f][reg] = half2_from_e4m3(run_words.words[2 * f + reg / 2] >> (reg % 2 * 16));
  }
}

// Returns the levels of a quantizer that a lane keeps in half precision. A lane keeps the level of code lane
// % 2^bits twice, or with 2 bits the levels of two codes. Lanes fetch the level of a code from the lane with
// the code's number. Higher bits in the index of the lane do not matter.
__device__ __forceinline__ std::uint32_t own_levels(const AnyPage& page, int lane) {
  const int bits = page.format.layout.bits;
  const int mask = (1 << bits) - 1;
  const float low = page.levels[lane & mask];
  return pack_half2(low, bits == 2 ? page.levels[(lane >> 2) & mask] : low);
}

template <int Bits>
__device__ __forceinline__ void read_levels(const unsigned char* codes, int run, int lane,
                                            std::uint32_t levels, Fragments& a) {
  const RunWords<2 * Bits> run_words(codes, run, lane);
#pragma unroll
  for (int f = 0; f < kRun; ++f) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      if constexpr (Bits == 2) {
        const int bit = (f % 2 * 2 + reg % 2) * 8 + reg / 2 * 4;
        a[f][reg] = __shfl_sync(~0U, levels, (run_words.words[f / 2] >> bit) & 15);
      } else {
        std::uint32_t pair[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int bit = ((f * 4 + reg) * 2 + j) * Bits;
          const std::uint32_t code =
              __funnelshift_r(run_words.words[bit / 32], run_words.words[bit / 32 + 1], bit % 32);
          pair[j] = __shfl_sync(~0U, levels, static_cast<int>(code & (kMaxLevels - 1)));
        }
        a[f][reg] = __byte_perm(pair[0], pair[1], 0x5410);
      }
    }
  }
}

}  // namespace kvant::cuda
