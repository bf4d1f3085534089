// Loads rows of queries and stores rows of outputs for prefill in half precision. Queries and outputs may be
// rotated on the way, and outputs are normalized.
#pragma once

#include "device/cuda/page/row_channels.cuh"
#include "device/cuda/prompt/half_tiles.cuh"
#include "device/cuda/prompt/weigh.cuh"

namespace kvant::cuda {

// Loads eight channels of a query in half precision.
__device__ __forceinline__ uint4 load_query(const PromptArgs& args, std::int64_t at) {
  if (args.q_type != NumberType::f32) {
    const uint4 octet = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(args.q.data) + at);
    return args.q_type == NumberType::f16 ? octet : half_octet<false>(octet);
  }
  const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(args.q.data) + at);
  const float4 low = from[0], high = from[1];
  return half_octet_of({low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w});
}

// Loads eight channels of a query for a rotation, in F32 with all stored bits.
__device__ __forceinline__ void load_query(const PromptArgs& args, std::int64_t at, float (&x)[8]) {
  if (args.q_type != NumberType::f32) {
    const uint4 octet = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(args.q.data) + at);
    if (args.q_type == NumberType::f16) {
      unpack_octet<true>(octet, x);
    } else {
      unpack_octet<false>(octet, x);
    }
    return;
  }
  const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(args.q.data) + at);
  const float4 low = from[0], high = from[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// This many lanes load a row of queries, eight channels a lane at a time.
template <int D>
inline constexpr int kLanesOfQuery = D / 8 < kLanes ? D / 8 : kLanes;

// Loads a block's queries into shared memory. Warps take rows [first, end) in turn and call store(row, octet,
// eight numbers). Heads of 512 are not rotated.
template <int D, class Store>
__device__ __forceinline__ void load_queries(const PromptArgs& args, const PromptItem& item, int head,
                                             int first, int end, int step, int lane, const Store& store) {
  constexpr int kLanesOfRow = kLanesOfQuery<D>;
  constexpr bool kIsLong = kLanesOfRow * 8 < D;
  const int octet = lane % kLanesOfRow;
  const auto place_of = [&](int row, int of_octet) {
    return (item.first_row + row) * args.q.token_stride + head * args.q.head_stride + of_octet * 8;
  };
  if constexpr (!kIsLong) {
    if (args.q_hadamard != 0) {
#pragma unroll 1
      for (int row = first + lane / kLanesOfRow; row < end; row += step) {
        float x[8] = {};
        if (row < item.n_rows) load_query(args, place_of(row, octet), x);
        rotate_channels<kLanesOfRow>(lane, x);
        store(row, octet, half_octet_of(x));
      }
      return;
    }
  }
#pragma unroll 2
  for (int row = first + lane / kLanesOfRow; row < end; row += step)
#pragma unroll
    for (int i = 0; i < D / 8; i += kLanesOfRow)
      store(row, octet + i,
            row < item.n_rows ? load_query(args, place_of(row, octet + i)) : make_uint4(0, 0, 0, 0));
}

// Normalizes and stores a thread's two rows of a block. A warp has D channels from first_channel on, and all
// channels of rows that are rotated.
template <int D>
__device__ __forceinline__ void store_half_rows(const PromptArgs& args, const PromptItem& item, int head,
                                                int row, int pair, int first_channel, const RowSums& rows,
                                                const float (&sums)[D / 2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float mass = rows.mass[i];
    mass += __shfl_xor_sync(~0U, mass, 1);
    mass += __shfl_xor_sync(~0U, mass, 2);
    float x[D / 4];  // x[2 j] is channel 8 j + 2 pair, and x[2 j + 1] the next channel.
#pragma unroll
    for (int j = 0; j < D / 4; ++j) x[j] = sums[j / 2 * 4 + 2 * i + j % 2];
    if (args.out_hadamard != 0) rotate_channels<4>(static_cast<int>(threadIdx.x) % kLanes, x);
    const int in_block = row + 8 * i;
    if (in_block >= item.n_rows) continue;
    const std::int64_t out_row = item.first_row + in_block;
    float reference = rows.reference[i], share = 1;
    // A sink's logit counts in the denominator only.
    if (args.sink_logits != nullptr) {
      const float sink = args.sink_logits[head] * 1.44269504F;
      reference = fmaxf(reference, sink);
      share = exp2_fast(rows.reference[i] - reference);
      mass = fmaf(mass, share, exp2_fast(sink - reference));
    }
    const bool is_first = pair == 0 && first_channel == 0;
    if (args.row_sums != nullptr && is_first)
      args.row_sums[out_row * args.n_heads + head] = {reference, mass};
    if (args.lse != nullptr && is_first)
      args.lse[out_row * args.lse_token_stride + head * args.lse_head_stride] =
          mass > 0 ? (reference + log2f(mass)) * 0.69314718F : -INFINITY;
    const float inverse = mass > 0 ? share / mass : 0;
    const std::int64_t at =
        out_row * args.out_token_stride + head * args.out_head_stride + first_channel + 2 * pair;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const float2 both = {x[2 * j] * inverse, x[2 * j + 1] * inverse};
      if (args.out_type == NumberType::f32) {
        *reinterpret_cast<float2*>(static_cast<float*>(args.out) + at + 8 * j) = both;
      } else {
        *reinterpret_cast<std::uint32_t*>(static_cast<unsigned short*>(args.out) + at + 8 * j) =
            args.out_type == NumberType::f16 ? pack_half2(both.x, both.y) : pack_bf16x2(both.x, both.y);
      }
    }
  }
}

}  // namespace kvant::cuda
