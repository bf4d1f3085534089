// Reads pages as rows for the kernels that make tiles. Sealed pages, with protected tokens in their places,
// and tail pages first become rows in shared memory.
#pragma once

#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/tile_rows.cuh"
#include "device/cuda/rows/dequantize_kernel.cuh"

namespace kvant::cuda {

static_assert(kQuantizeThreads == kDequantizeThreads && kTileTokens == kPageTokens);

// Holds the rows of a page's tokens in shared memory, kTokens at a time.
template <int D>
struct PageRows {
  static constexpr int kStride = dequantized_stride(D);
  // More tokens do not fit in 99 KB.
  static constexpr int kTokens = D <= 128 ? kTileTokens : D == 256 ? 64 : 16;
  DequantizeShared<D> page;
  alignas(16) unsigned short rows[kTokens][kStride];
};

// Writes tokens [first, end) of an unquantized page as rows in shared memory. All threads of the CTA must
// call this function, because each thread writes a part. Each load has 16 bytes as they lie in the page
// (plain_index). For keys these are four channels of two tokens, and for values two channels of four tokens.
template <PageSide Side, int D>
__device__ __forceinline__ void spread_plain_page(const unsigned char* page, int first, int end,
                                                  unsigned short* rows, int stride) {
  constexpr int kTokens = 16;  // tokens in a tile of the page
  constexpr int kPieces = D / 16 * kLanes;
  const auto* pieces = reinterpret_cast<const uint4*>(page);
  const auto place = [&](int token, int channel) { return rows + (token - first) * stride + channel; };
#pragma unroll 4
  for (int i = first / kTokens * kPieces + static_cast<int>(threadIdx.x);
       i < (end + kTokens - 1) / kTokens * kPieces; i += kQuantizeThreads) {
    const uint4 piece = __ldg(pieces + i);
    const int lane = i % kLanes;
    const int column = i / kLanes % (D / 16);
    const int tile_token = i / kPieces * kTokens;
    if constexpr (Side == PageSide::key) {
      const int token = tile_token + lane / 4;
      const int channel = lane % 4 * (D / 4) + 4 * column;
      if (token < end) *reinterpret_cast<uint2*>(place(token, channel)) = make_uint2(piece.x, piece.z);
      if (token + 8 < end)
        *reinterpret_cast<uint2*>(place(token + 8, channel)) = make_uint2(piece.y, piece.w);
    } else {
      const int channel = lane / 4 * (D / 8) + 2 * column;
      const auto put_two = [&](int token, std::uint32_t of_channel, std::uint32_t of_next) {
        auto* const to = reinterpret_cast<std::uint32_t*>(place(token, channel));
        if (token < end) *to = __byte_perm(of_channel, of_next, 0x5410);
        if (token + 1 < end) to[stride / 2] = __byte_perm(of_channel, of_next, 0x7632);
      };
      put_two(tile_token + lane % 4 * 2, piece.x, piece.y);
      put_two(tile_token + lane % 4 * 2 + 8, piece.z, piece.w);
    }
  }
}

// Reads rows from sealed pages, and from tail pages or rows in memory.
struct PagesAndRows {
  // Rows are read into shared memory, except rows that do not lie in tail pages.
  static constexpr bool kInSharedMemory = true;
  static constexpr int kSamplingCtas = 2;  // More CTAs do not fit on an SM, because decoding needs registers.

  // pages.token_stride is dequantized_stride(). Kernels that make tiles do not use the rows, lengths and
  // first page of `pages`.
  DequantizeArgs pages;
  // Rows come from tail pages if this is nonzero.
  int rows_in_tail;
  // from_codes[side] says whether a side's tiles of sealed pages are made directly from codes
  // (code_tiles.cuh), except for pages with a sink.
  bool from_codes[2] = {};
  // If tiles are made from codes, only this many slots of rows remain for the kernel that makes tiles from
  // rows.
  int row_slots = 0;

  // Returns the slot whose tile CTA n of a side makes. A negative number means that the CTA makes no tile.
  __device__ __forceinline__ int slot_of(const PromptArgs& args, int n, bool is_value) const {
    if (!(is_value ? from_codes[1] : from_codes[0])) return n;
    if (n >= args.n_seqs) return n - args.n_seqs < row_slots ? args.page_slots + n - args.n_seqs : -1;
    const bool has_sink = pages.sink > 0 && args.sealed_begins[n] < args.sealed_begins[n + 1];
    return has_sink ? args.sealed_begins[n] : -1;
  }

  template <int D>
  static constexpr int kSharedBytes = sizeof(PageRows<D>);
  template <int D>
  static constexpr int kTokens = PageRows<D>::kTokens;

  // Returns where read() leaves rows.
  template <int D>
  __device__ static unsigned short* rows(unsigned char* memory) {
    return &reinterpret_cast<PageRows<D>*>(memory)->rows[0][0];
  }

  // Returns the rows of a tile's tokens from token `first` on. All threads of the CTA must call this
  // function.
  template <int D>
  __device__ __forceinline__ TileRows read(const PromptArgs& args, const TileAt& at, unsigned char* memory,
                                           int first = 0) const {
    if (at.is_rows && rows_in_tail == 0) return OnlyRows{}.read<D>(args, at, memory, first);
    auto& shared = *reinterpret_cast<PageRows<D>*>(memory);
    // All threads must have read the previous rows, whose memory is reused.
    __syncthreads();
    if (at.is_value) {
      read_side<PageSide::value, D>(at, shared, first);
    } else {
      read_side<PageSide::key, D>(at, shared, first);
    }
    __syncthreads();
    return {&shared.rows[0][0], PageRows<D>::kStride};
  }

 private:
  template <PageSide Side, int D>
  __device__ __forceinline__ void read_side(const TileAt& at, PageRows<D>& shared, int first) const {
    const int end = first + kTokens<D>;
    if (at.is_rows) {
      spread_plain_page<Side, D>(pages.tail.find(at.seq, at.head, static_cast<int>(Side), at.number), first,
                                 min(at.n_tokens, end), &shared.rows[0][0], PageRows<D>::kStride);
    } else {
      const DequantizedPage page{at.seq, at.head, at.number, at.n_tokens, true, first, end};
      dequantize_page<Side, D>(pages, page, reinterpret_cast<unsigned char*>(shared.rows), shared.page);
    }
  }
};

// Calls body(is_half, source) with the source of a launch's rows. is_half is a constant that says whether
// 16-bit numbers are half precision.
template <class Body>
cudaError_t with_source(const PromptLaunch& launch, const Body& body) {
  if (launch.pages != nullptr)
    return body(std::false_type{}, PagesAndRows{*launch.pages, launch.rows_in_tail ? 1 : 0});
  return launch.is_half ? body(std::true_type{}, OnlyRows{}) : body(std::false_type{}, OnlyRows{});
}

}  // namespace kvant::cuda
