// Writes new rows into tail pages. A CTA is one row of one head and side, a thread one channel.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/encode_args.h"
#include "attention/cuda/ptx.cuh"

namespace kvant::cuda {

template <int D>
__global__ void __launch_bounds__(D) append_kernel(const __grid_constant__ AppendArgs args) {
  wait_for_predecessors();
  admit_successors();
  __shared__ float row[D];
  const int i = blockIdx.x;
  const int head = blockIdx.y;
  const int side = blockIdx.z;
  const int channel = threadIdx.x;
  const int token = args.tail_token[i];
  if (token < 0) return;
  float x = __bfloat162float(static_cast<const __nv_bfloat16*>(
      args.rows[side])[i * args.row_stride[side] + head * args.head_stride[side] + channel]);
  if (args.factors[side] != nullptr) x *= args.factors[side][head * D + channel];
  if (args.hadamard[side] != 0) {
    for (int half = 1; half < D; half *= 2) {
      row[channel] = x;
      __syncthreads();
      const float other = row[channel ^ half];
      x = (channel & half) == 0 ? x + other : other - x;
      __syncthreads();
    }
    x *= rsqrtf(static_cast<float>(D));
  }
  const PageSource& tail = args.tail;
  const int id = tail.table[args.seq[i] * tail.seq_stride + head * tail.head_stride +
                            side * tail.side_stride + token / kPageTokens];
  auto* page = reinterpret_cast<__nv_bfloat16*>(const_cast<unsigned char*>(
      tail.pool + id * tail.page_stride + head * tail.head_offset + side * tail.side_offset));
  page[plain_index(static_cast<PageSide>(side), D, token % kPageTokens, channel)] = __float2bfloat16(x);
}

}  // namespace kvant::cuda
