// IntegerQuery holds the queries of up to four heads as integers of 15 bits and a sign, split into two signed
// bytes. The bytes are the B operand of mma.m16n8k32, with the high bytes of head h in column 2 h and the low
// bytes in column 2 h + 1. Lane g * 4 + t of a product then has both parts of the sums of head t.
#pragma once

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/query.cuh"

namespace kvant::cuda {

inline constexpr int kHeadsOfSet = 4;

// Combines the sums of the high and the low bytes.
__device__ __forceinline__ int whole_sum(int high, int low) {
  return high * 256 + low;
}

// Rounded numbers have at most this magnitude, so their high bytes are signed bytes.
inline constexpr float kLargestInteger = 127 * 256;

// Holds the rounded queries of all query heads in shared memory, in the order in which lanes read them. One
// warp rounds each query head, and the other warps need not round it again.
template <int D>
struct IntegerRows {
  std::uint32_t words[2][D / 32][2][kLanes];  // [set of four heads][k tile][half][lane]
  float factors[kPaddedGroup];                // IntegerQuery::factor of each head

  // Rounds and stores a query head. A lane has channels lane * D/32 and the following ones.
  __device__ __forceinline__ void store(int head, const float (&x)[D / kLanes], float softmax_scale_log2,
                                        int lane) {
    float largest = 0;
#pragma unroll
    for (const float channel : x) largest = fmaxf(largest, fabsf(channel));
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
    const float grow = largest > 0 ? kLargestInteger / largest : 0;
    // Lanes of columns 2 * (head % 4) and the next one read the high and the low bytes. Each eighth lane of
    // this warp begins another quarter of the channels.
    const int reader = head % kHeadsOfSet * 8 + lane / 8;
#pragma unroll
    for (int j = 0; j < D / kLanes; ++j) {
      const int channel = lane % 8 * (D / kLanes) + j;  // within the quarter
      // The place is the inverse of IntegerQuery::channel().
      const int k = D >= 128 ? channel / 32 * 4 + channel / 2 % 4 : channel / 4 % 2;
      const int half = D >= 128 ? channel % 2 : channel / 2 % 2;
      const int byte = D >= 128 ? channel / 8 % 4 : channel % 2 * 2 + channel / 8;
      const int number = __float2int_rn(x[j] * grow);
      const int high = (number + 128) >> 8;
      auto* bytes = reinterpret_cast<std::int8_t*>(&words[head / kHeadsOfSet][k][half][reader]) + byte;
      bytes[0] = static_cast<std::int8_t>(high);
      bytes[16] = static_cast<std::int8_t>(number - high * 256);  // four lanes on
    }
    if (lane == 0) factors[head] = largest / kLargestInteger * softmax_scale_log2;
  }
};

template <int D>
struct IntegerQuery {
  std::uint32_t b[D / 32][2];
  float factor;  // factor from a sum of whole_sum() to the score of head t, in units of log 2

  // Returns which of the lane's D / 4 channels is byte j of register `half` of k tile `k_tile`. The columns
  // of trellis_place() determine the order.
  static __device__ __forceinline__ constexpr int channel(int k_tile, int half, int j) {
    return D >= 128 ? 32 * (k_tile / 4) + 8 * j + 2 * (k_tile % 4) + half
                    : 8 * (j % 2) + 4 * k_tile + 2 * half + j / 2;
  }

  // Reads the queries of a set of heads that IntegerRows has. Heads from n on are zeros.
  __device__ IntegerQuery(const IntegerRows<D>& rows, int first_head, int n, int lane) {
    const bool exists = first_head + lane / 8 < n;
#pragma unroll
    for (int k = 0; k < D / 32; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        b[k][half] = exists ? rows.words[first_head / kHeadsOfSet][k][half][lane] : 0;
    }
    factor = first_head + lane % 4 < n ? rows.factors[first_head + lane % 4] : 0;
  }

  // Loads and rounds the queries of a set of heads. first_head is the index of the set's first head among the
  // warp's query heads.
  template <class Part>
  __device__ IntegerQuery(const DecodeArgs& args, const Part& segment, int first_head, int lane) {
    constexpr int kChannels = D / 4;
    constexpr float kLargest = kLargestInteger;
    const int column = lane / 4;
    const int head = first_head + column / 2;
    float x[kChannels];
    load_query_channels<D>(args, segment, head, lane % 4, x);
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) largest = fmaxf(largest, fabsf(x[i]));
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
    const float grow = largest > 0 ? kLargest / largest : 0;
    const bool low = column % 2 != 0;
#pragma unroll
    for (int k = 0; k < D / 32; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t bytes = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int number = __float2int_rn(x[channel(k, half, j)] * grow);
          const int high = (number + 128) >> 8;
          bytes |= ((low ? number - high * 256 : high) & 0xff) << (8 * j);
        }
        b[k][half] = bytes;
      }
    }
    factor = __shfl_sync(~0U, largest / kLargest * args.softmax_scale_log2, lane % 4 * 8);
  }
};

}  // namespace kvant::cuda
