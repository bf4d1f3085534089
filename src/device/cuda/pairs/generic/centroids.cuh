// Makes fragments of vector codes of any size and of 16-bit numbers, for the generic kernel. The file
// numbers.cuh explains the runs that these functions read.
#pragma once

#include "device/cuda/pairs/generic/numbers.cuh"
#include "device/cuda/pairs/look_up.cuh"

namespace kvant::cuda {

// Holds the stream of codes in one lane, for codes of any width.
struct CodeStream {
  const unsigned char* codes;
  int bits, lane;

  __device__ __forceinline__ std::uint32_t word(int i) const {
    return reinterpret_cast<const std::uint32_t*>(codes)[(i / 4 * kLanes + lane) * 4 + i % 4];
  }
  __device__ __forceinline__ std::uint32_t code(int i) const {
    const int bit = i * bits;
    const int first = bit / 32;
    const std::uint32_t low = word(first);
    const std::uint32_t high = bit % 32 + bits > 32 ? word(first + 1) : 0;
    return __funnelshift_r(low, high, bit % 32) & ((1U << bits) - 1);
  }
};

// Returns two neighbouring channels of a centroid with `Channels` channels, starting at `channel`.
template <int Channels>
__device__ __forceinline__ std::uint32_t centroid_pair(const unsigned char* codebook, std::uint32_t code,
                                                       int channel) {
  return *reinterpret_cast<const std::uint32_t*>(codebook + (code * Channels + channel) * 2);
}

// Reads the run of keys of contraction tile `k`. `codebook` is the codebook of the head, in shared or global
// memory.
template <int D, int Channels>
__device__ __forceinline__ void read_key_vectors(const AnyPage& page, const unsigned char* codes,
                                                 const unsigned char* codebook, int k, int lane,
                                                 Fragments& a) {
  const CodeStream stream{codes, page.format.layout.bits, lane};
  const int vector = (first_channel<D>(PageSide::key, lane % 4) + 4 * k) / Channels;
  const int book_bytes = page.format.own_codebooks ? (2 * Channels) << stream.bits : 0;
  const unsigned char* book = codebook + vector * book_bytes;
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if constexpr (Channels == 2) {
        a[m][row] = centroid_pair<2>(book, stream.code((k * kTokenTiles + m) * 4 + row), 0);
        a[m][row + 2] =
            centroid_pair<2>(book + book_bytes, stream.code((k * kTokenTiles + m) * 4 + row + 2), 0);
      } else {
        const int channel = Channels == 8 ? k % 2 * 4 : 0;
        const std::uint32_t code = stream.code((k / (Channels / 4) * kTokenTiles + m) * 2 + row);
        a[m][row] = centroid_pair<Channels>(book, code, channel);
        a[m][row + 2] = centroid_pair<Channels>(book, code, channel + 2);
      }
    }
  }
}

template <int D, int Channels>
__device__ __forceinline__ void read_value_vectors(const AnyPage& page, const unsigned char* codes,
                                                   const unsigned char* codebook, int run, int lane,
                                                   Fragments& a) {
  constexpr int kSpan = Channels / 2;  // m tiles per code
  const CodeStream stream{codes, page.format.layout.bits, lane};
  const int book_bytes = page.format.own_codebooks ? (2 * Channels) << stream.bits : 0;
#pragma unroll
  for (int f = 0; f < kRun; f += kSpan) {
    const int fragment = run * kRun + f;
    const int m = fragment % (block_dim(D) / 16);
    const unsigned char* book =
        codebook + (first_channel<D>(PageSide::value, lane / 4) + 2 * m) / Channels * book_bytes;
    std::uint32_t code[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) code[j] = stream.code(fragment / kSpan * 4 + j);
#pragma unroll
    for (int i = 0; i < kSpan; ++i) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const std::uint32_t one = centroid_pair<Channels>(book, code[j], 2 * i);
        const std::uint32_t next = centroid_pair<Channels>(book, code[j + 1], 2 * i);
        a[f + i][j] = low_halves(one, next);
        a[f + i][j + 1] = high_halves(one, next);
      }
    }
  }
}

// Reads the run of keys of contraction tile `k` in a page of 16-bit numbers, which has the order of
// unquantized pages (plain_index).
template <int D>
__device__ __forceinline__ void read_plain_keys(const unsigned char* numbers, int k, int lane, Fragments& a) {
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const int token = m / 2 * 32 + lane / 4 * 4 + m % 2 * 2 + reg % 2;
      const int channel = first_channel<D>(PageSide::key, lane % 4) + 4 * k + reg / 2 * 2;
      a[m][reg] = *reinterpret_cast<const std::uint32_t*>(numbers +
                                                          2 * plain_index(PageSide::key, D, token, channel));
    }
  }
}

template <int D>
__device__ __forceinline__ void read_plain_values(const unsigned char* numbers, int run, int lane,
                                                  Fragments& a) {
#pragma unroll
  for (int f = 0; f < kRun; ++f) {
    const int k = (run * kRun + f) / (block_dim(D) / 16);
    const int m = (run * kRun + f) % (block_dim(D) / 16);
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const int channel = first_channel<D>(PageSide::value, lane / 4) + 2 * m + reg % 2;
      const int token = k / 2 * 32 + lane % 4 * 8 + k % 2 * 2 + reg / 2;
      const auto number = [&](int of_token) {
        return static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(
            numbers + 2 * plain_index(PageSide::value, D, of_token, channel)));
      };
      a[f][reg] = number(token) | number(token + 4) << 16;
    }
  }
}

}  // namespace kvant::cuda
