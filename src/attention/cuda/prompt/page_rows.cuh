// Tiles of pages: sealed ones, with protected tokens in their places, and those of the tail become rows in
// shared memory first.
#pragma once

#include "attention/cuda/prefill/dequantize_kernel.cuh"
#include "attention/cuda/prompt/launch.h"
#include "attention/cuda/prompt/tile_rows.cuh"

namespace kvant::cuda {

static_assert(kQuantizeThreads == kDequantizeThreads && kTileTokens == kPageTokens);

template <int D>
struct PageRows {
  static constexpr int kStride = dequantized_stride(D);
  static constexpr int kTokens = D <= 128 ? kTileTokens : kTileTokens / 2;  // 99 KB hold no more
  DequantizeShared<D> page;
  alignas(16) unsigned short rows[kTokens][kStride];
};

struct PagesAndRows {
  static constexpr int kSamplingCtas = 2;  // decoding takes registers

  DequantizeArgs pages;  // token_stride is dequantized_stride; without rows, lengths and a first page
  int rows_in_tail;      // rows are those of tail pages

  template <int D>
  static constexpr int kSharedBytes = sizeof(PageRows<D>);
  template <int D>
  static constexpr int kTokens = PageRows<D>::kTokens;

  template <int D>
  __device__ __forceinline__ TileRows read(const PromptArgs& args, const TileAt& at, unsigned char* memory,
                                           int first = 0) const {
    if (at.is_rows && rows_in_tail == 0) return OnlyRows{}.read<D>(args, at, memory, first);
    auto& shared = *reinterpret_cast<PageRows<D>*>(memory);
    const DequantizedPage page{at.seq,      at.head, at.number,         at.n_tokens,
                               !at.is_rows, first,   first + kTokens<D>};
    auto* rows = reinterpret_cast<unsigned char*>(shared.rows);
    __syncthreads();  // the rows before have been read
    if (at.is_value) {
      dequantize_page<PageSide::value, D>(pages, page, rows, shared.page);
    } else {
      dequantize_page<PageSide::key, D>(pages, page, rows, shared.page);
    }
    __syncthreads();
    return {&shared.rows[0][0], PageRows<D>::kStride};
  }
};

// Calls body(whether numbers of 16 bits are half precision, where a launch's rows come from).
template <class Body>
cudaError_t with_source(const PromptLaunch& launch, const Body& body) {
  if (launch.pages != nullptr)
    return body(std::false_type{}, PagesAndRows{*launch.pages, launch.rows_in_tail ? 1 : 0});
  return launch.is_half ? body(std::true_type{}, OnlyRows{}) : body(std::false_type{}, OnlyRows{});
}

}  // namespace kvant::cuda
