// Writes the many new keys and values of prompts into tail pages. A warp processes 16 rows of one head and
// side. A page's unquantized numbers lie in tiles of 16 tokens (plain_index), which consist of pieces of 16
// bytes. A warp that has all tokens of a tile writes whole pieces, while single rows would write two or four
// bytes at a time.
#pragma once

#include "device/cuda/seal/append_kernel.cuh"

namespace kvant::cuda {

inline constexpr int kTileRows = 16;  // tokens in a tile
// With at least this many rows, one warp for each 16 rows gives enough warps to fill a GPU.
inline constexpr int kRowsForTiles = 512;

// Returns a bit for each of 64 rows. The bit says whether the row begins a tile whose other tokens are in the
// following rows. Bit 16 belongs to row `first`.
__device__ __forceinline__ std::uint64_t whole_tiles(const AppendArgs& args, std::int64_t first, int lane) {
  // A bit of `follows` says that the previous row is the previous token.
  std::uint64_t begins = 0, follows = 0;
  AppendedToken before{-1, -1};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first + (2 * half - 1) * kTileRows + lane;
    const bool is_row = row >= 0 && row < args.n_rows;
    const AppendedToken own = is_row ? said_token(args, row) : AppendedToken{-1, -1};
    AppendedToken last{__shfl_up_sync(~0U, own.seq, 1), __shfl_up_sync(~0U, own.token, 1)};
    if (lane == 0) last = before;
    const bool is_stored = own.seq >= 0 && own.token >= 0;
    const auto bits = [&](bool is) { return std::uint64_t{__ballot_sync(~0U, is)} << (kLanes * half); };
    begins |= bits(is_stored && own.token % kTileRows == 0);
    follows |= bits(is_stored && own.seq == last.seq && own.token == last.token + 1);
    before = {__shfl_sync(~0U, own.seq, kLanes - 1), __shfl_sync(~0U, own.token, kLanes - 1)};
  }
  std::uint64_t others = follows >> 1;  // bit i says that rows i + 1 to i + 15 all follow
  others &= others >> 1;
  others &= others >> 2;
  others &= others >> 4;
  others &= others >> 7;
  return begins & others;
}

// Writes rows [row, row + 16) of a KV head and side, which are the tokens of a tile, into `page`, from token
// `token` on.
template <PageSide Side, int D>
__device__ __forceinline__ void store_tile(const AppendArgs& args, std::int64_t row, int head, int token,
                                           unsigned char* page, int lane) {
  constexpr int kOwn = D / kLanes;  // neighbouring channels per lane
  const AppendedRows& rows = args.sides[static_cast<int>(Side)];
  auto* const numbers = reinterpret_cast<std::uint16_t*>(page);
  const auto load = [&](int i, float(&x)[kOwn]) {
    load_row<D>(rows, args.type, row + i, head, head, lane, x);
  };
  const auto to = [&](int i, int channel) {
    return numbers + plain_index(Side, D, token + i, lane * kOwn + channel);
  };
  if constexpr (Side == PageSide::key) {  // a piece has 4 channels of 2 tokens
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float low[kOwn], high[kOwn];
      load(i, low);
      load(i + 8, high);
#pragma unroll
      for (int c = 0; c < kOwn; c += 4) {
        const uint2 half{pack_bf16x2(low[c], low[c + 1]), pack_bf16x2(high[c], high[c + 1])};
        if constexpr (kOwn == 2) {
          *reinterpret_cast<uint2*>(to(i, c)) = half;
        } else {
          *reinterpret_cast<uint4*>(to(i, c)) = {half.x, half.y, pack_bf16x2(low[c + 2], low[c + 3]),
                                                 pack_bf16x2(high[c + 2], high[c + 3])};
        }
      }
    }
  } else {  // a piece has 2 channels of 4 tokens
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      float x[4][kOwn];
#pragma unroll
      for (int j = 0; j < 4; ++j) load(i + j % 2 + j / 2 * 8, x[j]);
#pragma unroll
      for (int c = 0; c < kOwn; c += 2)
        *reinterpret_cast<uint4*>(to(i, c)) = {
            pack_bf16x2(x[0][c], x[1][c]), pack_bf16x2(x[0][c + 1], x[1][c + 1]),
            pack_bf16x2(x[2][c], x[3][c]), pack_bf16x2(x[2][c + 1], x[3][c + 1])};
    }
  }
}

// Works like append_kernel() for rows whose tokens the caller lists (args.seq, args.tail_token), but without
// queries.
template <int D>
__global__ void __launch_bounds__(kAppendThreads)
    append_tiles_kernel(const __grid_constant__ AppendArgs args) {
  wait_for_predecessors();
  admit_successors();
  const std::int64_t i =
      static_cast<std::int64_t>(blockIdx.x) * (kAppendThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t first = i / (2 * args.n_kv_heads) * kTileRows;
  if (first >= args.n_rows) return;
  const int nth = static_cast<int>(i % (2 * args.n_kv_heads));
  const int side = nth / args.n_kv_heads, head = nth % args.n_kv_heads;

  const std::uint64_t tiles = whole_tiles(args, first, lane);
  const auto own = static_cast<std::uint32_t>(tiles >> kTileRows) & 0xffff;
  if (own != 0) {  // at most one, because the next tile begins 16 rows later
    const std::int64_t row = first + __ffs(static_cast<int>(own)) - 1;
    const int token = args.tail_token[row];
    unsigned char* const page =
        const_cast<unsigned char*>(args.tail.find(args.seq[row], head, side, token / kPageTokens));
    if (side == static_cast<int>(PageSide::key)) {
      store_tile<PageSide::key, D>(args, row, head, token % kPageTokens, page, lane);
    } else {
      store_tile<PageSide::value, D>(args, row, head, token % kPageTokens, page, lane);
    }
  }
  std::uint64_t of_tiles = tiles;  // the loop extends the bits to every row of these tiles
#pragma unroll
  for (int step = 1; step < kTileRows; step *= 2) of_tiles |= of_tiles << step;
  const std::int64_t end = min(first + kTileRows, args.n_rows);
  for (std::int64_t row = first; row < end; ++row)
    if ((of_tiles >> (row - first + kTileRows) & 1) == 0)
      append_row<D>(args, row, side, head, said_token(args, row), lane);
}

}  // namespace kvant::cuda
