// Keeps the sink of sequences whose first page is sealed: copies its rows out of the tail into protected
// pages. A CTA is one KV head and side of a sequence and layer, a thread one channel.
#pragma once

#include "attention/cuda/seal/encode_args.h"

namespace kvant::cuda {

struct KeepSinkArgs {
  int n_seqs, sink;
  DueArgs due;
  PageSource tail, protected_pages;
  LayerDistance of_protected;
};

template <int D>
__global__ void __launch_bounds__(D) keep_sink_kernel(const __grid_constant__ KeepSinkArgs args) {
  const int layer = static_cast<int>(blockIdx.x) / args.n_seqs;
  const int seq = static_cast<int>(blockIdx.x) % args.n_seqs;
  const int tail_page = args.due.tail_page[seq];
  if (tail_page < 0 || args.due.sealed_page[seq] != 0) return;
  if (args.due.n_pages != nullptr && args.due.n_pages[seq] == 0) return;
  const int head = static_cast<int>(blockIdx.y), side = static_cast<int>(blockIdx.z);
  const auto numbers_of = [&](const PageSource& pages, const LayerDistance& distance, int page) {
    const unsigned char* found =
        of_layer(pages, distance, args.due.layer_offsets, layer).find(seq, head, side, page);
    return reinterpret_cast<std::uint16_t*>(const_cast<unsigned char*>(found));
  };
  const std::uint16_t* from = numbers_of(args.tail, args.due.tail, tail_page);
  std::uint16_t* to = numbers_of(args.protected_pages, args.of_protected, 0);
  for (int token = 0; token < args.sink; ++token) {
    const int at = plain_index(static_cast<PageSide>(side), D, token, static_cast<int>(threadIdx.x));
    to[at] = from[at];
  }
}

}  // namespace kvant::cuda
