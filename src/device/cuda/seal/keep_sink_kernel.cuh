// Copies the rows of the sink into protected pages when a sequence's first page is sealed. The rows come from
// the tail, or from the new rows from which pages are made. A CTA copies one KV head and side of a sequence
// and layer. For rows of the tail each thread copies one channel, and for new rows each warp copies a whole
// row.
#pragma once

#include "device/cuda/seal/append_kernel.cuh"

namespace kvant::cuda {

struct KeepSinkArgs {
  int n_seqs, sink;
  DueArgs due;
  PageSource tail, protected_pages;
  LayerDistance of_protected;
  SealedRows rows;
};

template <int D>
__global__ void __launch_bounds__(D) keep_sink_kernel(const __grid_constant__ KeepSinkArgs args) {
  const int layer = static_cast<int>(blockIdx.x) / args.n_seqs;
  const int seq = static_cast<int>(blockIdx.x) % args.n_seqs;
  if (args.due.sealed_page[seq] != 0 || pages_of(args.due, seq) == 0) return;
  const int head = static_cast<int>(blockIdx.y), side = static_cast<int>(blockIdx.z);
  if (const std::int64_t row = first_due_row(args.rows, seq); row >= 0) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    for (int token = static_cast<int>(threadIdx.x) / kLanes; token < args.sink; token += D / kLanes) {
      float x[D / kLanes];
      load_row<D>(args.rows.sides[side], args.rows.type, row + token, head, head, lane, x);
      store_token<D>(args.protected_pages, seq, head, side, token, lane, x);
    }
    return;
  }
  const int tail_page = args.due.tail_page == nullptr ? -1 : args.due.tail_page[seq];
  if (tail_page < 0) return;
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
