// A page that is being encoded in shared memory, as the encoders of all families see it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/cuda/encode_args.h"

namespace kvant::cuda {

inline constexpr int kSealThreads = 256;

template <int D>
struct alignas(16) SealShared {
  static constexpr int kRow = D + 1;  // spreads a channel's tokens over banks
  static constexpr int kMostPageBytes = kTokens * D * 6 / 8 + 4 * kTokens + 4 * D;
  float values[kTokens * kRow];
  std::uint32_t page[kMostPageBytes / 4];
  std::uint32_t left_out[kTokens / 32];
  float largest;
};

// One page's encoding, seen by one thread.
template <int D>
struct SealPage {
  SealShared<D>& shared;
  const PageEncoding& format;
  PageSide side;
  int head;

  __device__ float value(int token, int channel) const {
    return shared.values[token * SealShared<D>::kRow + channel];
  }
  __device__ float& value(int token, int channel) {
    return shared.values[token * SealShared<D>::kRow + channel];
  }
  __device__ bool left_out(int token) const { return (shared.left_out[token / 32] >> (token % 32) & 1) != 0; }
  __device__ unsigned char* parameters() const {
    return reinterpret_cast<unsigned char*>(shared.page) + code_bytes(format.layout, D);
  }
  __device__ void store_half(int index, __half x) { reinterpret_cast<__half*>(parameters())[index] = x; }

  // The code that begins at `channel`.
  __device__ void store_code(int token, int channel, std::uint32_t code) {
    const bool bytes = format.layout.order == CodeOrder::trellis;  // else whole words hold a lane's stream
    for (int bit = 0; bit < format.layout.bits;) {
      const int at = code_bit(format.layout, side, D, token, channel, bit);
      const int room = min(format.layout.bits - bit, bytes ? 8 - at % 8 : 32 - at % 32);
      const std::uint32_t piece = (code >> bit) & ((1U << room) - 1);
      atomicOr(&shared.page[at / 32], piece << (at % 32));
      bit += room;
    }
  }
};

__device__ inline __half half_saturated(float x) {
  return __float2half_rn(fminf(fmaxf(x, -65504.0F), 65504.0F));
}

}  // namespace kvant::cuda
