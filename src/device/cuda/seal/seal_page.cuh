// Loads, encodes and stores a page that is being sealed. SealPage is the page in shared memory in the form
// that the encoders of scalar formats use. The functions outside of SealPage serve all encoders.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/cuda/common/architecture.cuh"
#include "device/cuda/common/ptx.cuh"
#include "device/cuda/seal/new_row.cuh"

namespace kvant::cuda {

inline constexpr int kSealThreads = 256;

// SealShared is the shared memory of a CTA that encodes a page. Pages of heads of 512 channels are written
// directly to their destination, because shared memory only holds their values. Grids of these pages have at
// least 32 values.
template <int D>
struct alignas(16) SealShared {
  static constexpr bool kHasPage = D <= 256;
  static constexpr int kRow = D + 2;  // the padding spreads a channel's tokens over banks
  static constexpr int kMaxGrids = kPageTokens * D / (kHasPage ? 8 : 32);
  static constexpr int kMaxPageBytes = kPageTokens * D * 3 / 2;  // 8 bits for each value, and the grids
  __nv_bfloat16 values[kPageTokens * kRow];
  std::uint32_t page[kHasPage ? kMaxPageBytes / 4 : 4];
  float2 grids[kMaxGrids];  // zero and reciprocal of the step, or other numbers of the encoder
  std::uint32_t left_out[kPageTokens / 32];
  float largest[2];  // the largest magnitude in each block of 64 tokens
};

// DuePage is a page that must be sealed. It has the page's index in its sequence, its source and its
// destination.
struct DuePage {
  int layer;  // counted from the first sealed layer
  int seq, page;
  const unsigned char* tail;
  unsigned char* sealed;
  std::int64_t row;  // first row of the page, or negative if the page is in the tail
};

// SealLaunch lives as long as a kernel. The launches of a call seal different pages, so they may run at the
// same time. One CTA waits for the previous launch, so the last launch ends after all launches of the call.
struct SealLaunch {
  __device__ explicit SealLaunch(const SealArgs& args) {
    if (args.admits_next != 0) admit_successors();
  }
  __device__ ~SealLaunch() {
    if (blockIdx.x == 0 && blockIdx.y == 0) wait_for_predecessors();
  }
  SealLaunch(const SealLaunch&) = delete;
  SealLaunch& operator=(const SealLaunch&) = delete;
};

// Finds page `nth` of the unit's pages that may be due. Returns false if this page is not due. If TakesRows
// is true, the page may be made from rows.
template <bool TakesRows = false>
__device__ bool find_due_page(const SealArgs& args, const SealUnit& unit, int nth, DuePage* due) {
  const int of_all = nth / args.due.max_pages;  // index of the sequence over all layers
  due->layer = of_all / args.n_seqs;
  due->seq = of_all % args.n_seqs;
  const int of_seq = nth % args.due.max_pages;
  due->row = TakesRows ? first_due_row(args.rows, due->seq) : -1;
  if (TakesRows && due->row < 0 && args.due.tail_page == nullptr) return false;
  if (of_seq >= (due->row >= 0 ? pages_of(args.due, due->seq) : pages_due(args.due, due->seq))) return false;
  due->page = args.due.sealed_page[due->seq] + of_seq;
  if (due->row >= 0) {
    due->row += of_seq * kPageTokens;
    due->tail = nullptr;
  } else {
    due->tail = of_layer(unit.tail, args.due.tail, args.due.layer_offsets, due->layer)
                    .find(due->seq, args.due.tail_page[due->seq] + of_seq);
  }
  const HeadPages sealed = of_layer(unit.sealed, args.due.sealed, args.due.layer_offsets, due->layer);
  due->sealed = const_cast<unsigned char*>(sealed.find(due->seq, due->page));
  return true;
}

// Returns a bit for each of the 32 tokens from token 32 * word on, which is 1 if the token is left out of the
// page. The ranges of grids ignore tokens that are left out.
__device__ inline std::uint32_t left_out_tokens(const SealArgs& args, const SealUnit& unit,
                                                const DuePage& due, int word) {
  std::uint32_t bits = 0;
  if (args.masks != nullptr)
    bits = reinterpret_cast<const std::uint32_t*>(args.masks + due.seq * args.mask_seq_stride +
                                                  unit.head * args.mask_head_stride + due.page)[word];
  const int sink = due.page == 0 ? min(max(unit.sink - 32 * word, 0), 32) : 0;
  return bits | (sink == 32 ? ~0U : (1U << sink) - 1);
}

// Writes the code of (token, channel) into the page's words, in which the code's bits must be 0. `channel` is
// the first channel of the code.
template <int D>
__device__ void store_code(std::uint32_t* words, const CodeLayout& layout, PageSide side, int token,
                           int channel, std::uint32_t code) {
  for (int bit = 0; bit < layout.bits;) {
    const int at = code_bit(layout, side, D, token, channel, bit);
    const int room = bits_side_by_side(layout, bit, at);
    const std::uint32_t piece = (code >> bit) & ((1U << room) - 1);
    atomicOr(&words[at / 32], piece << (at % 32));
    bit += room;
  }
}

// Reads a code that store_code() has written into the page's words.
template <int D>
__device__ std::uint32_t load_code(const std::uint32_t* words, const CodeLayout& layout, PageSide side,
                                   int token, int channel) {
  std::uint32_t code = 0;
  for (int bit = 0; bit < layout.bits;) {
    const int at = code_bit(layout, side, D, token, channel, bit);
    const int room = bits_side_by_side(layout, bit, at);
    code |= ((words[at / 32] >> (at % 32)) & ((1U << room) - 1)) << bit;
    bit += room;
  }
  return code;
}

// Copies the numbers of a tail page to rows [kPageTokens][row]. piece_at(i) returns piece i of 16 bytes, in
// the order of plain_index().
template <int D, class Piece>
__device__ void store_rows(const Piece& piece_at, PageSide side, __nv_bfloat16* rows, int row) {
  const auto store = [&](int token, int channel, std::uint32_t pair) {
    *reinterpret_cast<std::uint32_t*>(rows + token * row + channel) = pair;
  };
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * D / 8; i += static_cast<int>(blockDim.x)) {
    const uint4 piece = piece_at(i);
    const int lane = i % kLanes;
    const int tile = i / kLanes / (D / 16) * 16;
    const int k = i / kLanes % (D / 16);
    if (side == PageSide::key) {
      const int token = tile + lane / 4;
      const int channel = lane % 4 * (D / 4) + 4 * k;
      store(token, channel, piece.x);
      store(token + 8, channel, piece.y);
      store(token, channel + 2, piece.z);
      store(token + 8, channel + 2, piece.w);
    } else {  // a word has a pair of tokens
      const int token = tile + lane % 4 * 2;
      const int channel = lane / 4 * (D / 8) + 2 * k;
      store(token, channel, __byte_perm(piece.x, piece.y, 0x5410));
      store(token + 1, channel, __byte_perm(piece.x, piece.y, 0x7632));
      store(token + 8, channel, __byte_perm(piece.z, piece.w, 0x5410));
      store(token + 9, channel, __byte_perm(piece.z, piece.w, 0x7632));
    }
  }
}
template <int D>
__device__ void load_rows(const unsigned char* tail, PageSide side, __nv_bfloat16* rows, int row) {
  store_rows<D>([&](int i) { return __ldg(reinterpret_cast<const uint4*>(tail) + i); }, side, rows, row);
}

// Copies rows of bf16 numbers that need no transformation. Each thread copies 16 bytes at a time.
template <int D>
__device__ void copy_new_rows(const AppendedRows& rows, std::int64_t first, int head, __nv_bfloat16* to,
                              int row) {
  constexpr int kOctets = D / 8;
  const auto* const from = static_cast<const __nv_bfloat16*>(rows.rows) + head * rows.head_stride;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * kOctets; i += static_cast<int>(blockDim.x)) {
    const int token = i / kOctets, channel = i % kOctets * 8;
    const uint4 octet =
        __ldg(reinterpret_cast<const uint4*>(from + (first + token) * rows.row_stride + channel));
    auto* const pairs = reinterpret_cast<std::uint32_t*>(to + token * row + channel);
    pairs[0] = octet.x;
    pairs[1] = octet.y;
    pairs[2] = octet.z;
    pairs[3] = octet.w;
  }
}

// Loads a page's rows, transforms them like appended rows, and writes them to rows [kPageTokens][row] of
// shared memory. Each warp processes several rows at a time. All threads of the CTA must call this function.
template <int D>
__device__ void load_new_rows(const SealArgs& args, const SealUnit& unit, const DuePage& due,
                              __nv_bfloat16* to, int row) {
  const int head = unit.head;
  const AppendedRows& rows = args.rows.sides[unit.side];
  if (args.rows.type == NumberType::bf16 && rows.is_wide != 0 && rows.channels == D &&
      rows.factors == nullptr && rows.hadamard == 0)
    return copy_new_rows<D>(rows, due.row, head, to, row);
  constexpr int kOwn = D / kLanes;  // neighbouring channels per lane
  constexpr int kTogether = 32 / kOwn;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int n_warps = static_cast<int>(blockDim.x) / kLanes;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) / kLanes; first < kPageTokens;
       first += n_warps * kTogether) {
    float x[kTogether][kOwn];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int token = min(first + i * n_warps, kPageTokens - 1);
      read_row<D>(rows, args.rows.type, due.row + token, head, lane, x[i]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      transform_row<D>(rows, head, lane, x[i]);
      const int token = first + i * n_warps;
      if (token >= kPageTokens) continue;
      auto* pairs = reinterpret_cast<std::uint32_t*>(to + token * row + lane * kOwn);
#pragma unroll
      for (int j = 0; j < kOwn; j += 2) pairs[j / 2] = pack_bf16x2(x[i][j], x[i][j + 1]);
    }
  }
}

// SealPage holds the state of one thread that encodes a page.
template <int D>
struct SealPage {
  SealShared<D>& shared;
  std::uint32_t* words;  // words of the page
  const PageEncoding& format;
  PageSide side;

  __device__ float value(int token, int channel) const {
    return __bfloat162float(shared.values[token * SealShared<D>::kRow + channel]);
  }
  __device__ bool left_out(int token) const { return (shared.left_out[token / 32] >> (token % 32) & 1) != 0; }
  __device__ unsigned char* parameters() const {
    return reinterpret_cast<unsigned char*>(words) + code_bytes(format.layout, D);
  }
  __device__ void store_half(int index, __half x) { reinterpret_cast<__half*>(parameters())[index] = x; }

  __device__ void store_code(int token, int channel, std::uint32_t code) {
    cuda::store_code<D>(words, format.layout, side, token, channel, code);
  }
};

// Returns the largest magnitude that f16 parameter `i` of `numbers` represents: of the parameter itself, or
// of the values of its grid. Unless grids are symmetric, the n_grids scales are followed by n_grids zeros.
__device__ inline float largest_magnitude(const PageFormat& stored, const __half* numbers, int i,
                                          int n_grids) {
  const float x = __half2float(numbers[i]);
  const int bits = stored.layout.bits;
  if (n_grids == 0) return fabsf(x);
  if (stored.symmetric) return fabsf(x) * static_cast<float>(1 << (bits - 1));
  if (i >= n_grids) return fabsf(x);
  return fabsf(__half2float(numbers[i + n_grids]) + x * static_cast<float>((1 << bits) - 1));
}

// Counts the page if its values exceed half precision, or if a parameter has the largest half-precision
// magnitude. half_saturated() reduces larger magnitudes to that magnitude. Tokens that are left out do not
// matter. All threads of the CTA must call this function once all of them can read the parameters.
__device__ inline void count_if_out_of_range(const SealArgs& args, const SealUnit& unit, const DuePage& due,
                                             const PageEncoding& format, int d, const void* parameters) {
  if (unit.pages_out_of_range == nullptr) return;
  constexpr float kLargest = 65504;
  const PageFormat& stored = format.stored;
  const int n = stored.half_parameters(d);
  const bool of_tokens = stored.grid == GridAxis::of_tokens || stored.factor == TokenFactor::half;
  const bool has_grids = stored.grid == GridAxis::of_tokens || stored.grid == GridAxis::of_channels;
  const int n_grids = has_grids ? n / (stored.symmetric ? 1 : 2) : 0;
  const int of_token = stored.grid == GridAxis::of_tokens ? stored.groups(d) : 1;
  const auto* numbers = static_cast<const __half*>(parameters);
  int beyond = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    if (largest_magnitude(stored, numbers, i, n_grids) < kLargest) continue;
    const int token = i / of_token % kPageTokens;
    const bool left_out =
        of_tokens && (left_out_tokens(args, unit, due, token / 32) >> (token % 32) & 1) != 0;
    beyond |= left_out ? 0 : 1;
  }
  if (__syncthreads_or(beyond) != 0 && threadIdx.x == 0) atomicAdd(unit.pages_out_of_range, 1U);
}

__device__ inline __half half_saturated(float x) {
  return __float2half_rn(fminf(fmaxf(x, -65504.0F), 65504.0F));
}

}  // namespace kvant::cuda
