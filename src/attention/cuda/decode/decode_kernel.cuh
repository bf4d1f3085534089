// The decode attention kernel. CTAs are persistent; each of a CTA's consumer warps attends on its own to
// pages of the CTA's range in turn, with a ring of pages in shared memory that the copying warp keeps filled
// (page_copier.cuh). Where a range leaves a sequence, the warps merge what they have, and either write the
// output or, if other CTAs hold parts of the sequence, leave a partial result that the last of them combines
// (leave_segment.cuh).
//
// Where a warp's registers are too few for what it has of a page (heads of 256), two warps share a ring: each
// attends to half of every page's tokens (Pair::kPageWarps).
//
// A pair (pairs/*.cuh) supplies the formats: Pair::Key::score and Pair::Value::mix, or, with sums of its own,
// Pair::attend and Pair::finish; and tables in shared memory.
#pragma once

#include "attention/cuda/decode/decode_args.h"
#include "attention/cuda/decode/leave_segment.cuh"
#include "attention/cuda/decode/online_softmax.cuh"
#include "attention/cuda/decode/page_copier.cuh"
#include "attention/cuda/decode/plain_tile.cuh"
#include "attention/cuda/decode/query.cuh"
#include "attention/cuda/decode/work_range.cuh"
#include "attention/cuda/device/ptx.cuh"

namespace kvant::cuda {

// Scores, then weights, of a page: tile, then row g and heads 2t, 2t + 1, row g + 8 and heads 2t, 2t + 1.
using Scores = float[kTokenTiles][4];

// A consumer warp's end of its ring.
struct RingReader {
  const Rings& rings;
  const unsigned char* first;  // slot
  int index;                   // of the ring
  int stage = 0;
  std::uint32_t parity = 0;
  std::uint32_t value_parities = 0;  // a bit for each slot whose values come later: pairs/skipping.cuh

  // The number, within the CTA's range, of the warp's next unit after `last`, or INT_MAX.
  __device__ int next_unit(int last) const {
    do {
      const int number = load_shared(rings.unit(index, stage));
      if (number > last) return number;
    } while (load_shared(rings.last_unit(index)) != last);
    return INT_MAX;
  }
  __device__ const unsigned char* wait() const {
    barrier_wait(rings.full(index, stage), parity);
    return first + stage * rings.slot_bytes;
  }
  // This lane has read what it needs; the slot is free when all have said so.
  __device__ void release() {
    release_kept(stage);
    keep();
  }
  // Goes on to the next slot without giving this one back: release_kept does, later.
  __device__ void keep() {
    if (++stage == rings.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void release_kept(int of_stage) const { barrier_arrive(rings.empty(index, of_stage)); }
};

// Warps that share a ring and attend to neighbouring parts of each page's tokens.
template <class Pair>
inline constexpr int kPageWarps = 1;
template <class Pair>
requires requires {
  Pair::kPageWarps;
}
inline constexpr int kPageWarps<Pair> = Pair::kPageWarps;

// Which of the parts of pages is this warp's, and the tiles of one.
template <int PageWarps>
__device__ __forceinline__ int part_of_page() {
  return PageWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / kLanes % PageWarps;
}
template <int PageWarps>
inline constexpr int kTilesOfWarp = kTokenTiles / PageWarps;

__device__ __forceinline__ bool may_be_masked(const DecodeArgs& args, int page) {
  return args.masks != nullptr || (page == 0 && (args.sink > 0 || args.first_tokens != nullptr));
}

// The protected tokens among 32 of a sealed page: those of tiles 2 * group and 2 * group + 1.
__device__ __forceinline__ std::uint32_t mask_word(const DecodeArgs& args, const Segment& segment, int page,
                                                   int group) {
  std::uint32_t word = 0;
  if (args.masks != nullptr) {
    const uint4* mask =
        args.masks + segment.seq * args.mask_seq_stride + segment.head * args.mask_head_stride + page;
    word = reinterpret_cast<const std::uint32_t*>(mask)[group];
  }
  int hidden = 0;  // of the page's first tokens
  if (page == 0)
    hidden = args.first_tokens == nullptr ? args.sink : max(args.sink, args.first_tokens[segment.seq]);
  hidden = min(max(hidden - 32 * group, 0), 32);
  return word | (hidden == 32 ? ~0U : (1U << hidden) - 1);
}

// Takes protected tokens out of the scores of tiles from 2 * first_group on.
template <int Tiles>
__device__ __forceinline__ void mask_scores(const DecodeArgs& args, const Segment& segment, int page,
                                            int first_group, int lane, float (&s)[Tiles][4]) {
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
    const std::uint32_t word = mask_word(args, segment, page, first_group + tile / 2);
    const std::uint32_t bits = word >> (lane / 4 * 4 + tile % 2 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if ((bits >> (i / 2)) & 1) s[tile][i] = -INFINITY;
  }
}

template <class Pair, int D>
__device__ __forceinline__ void attend_sealed(const DecodeArgs& args, const unsigned char* tables,
                                              const Segment& segment, int page, const Query<D>& query,
                                              int lane, RingReader& ring, Accumulator<D>& acc,
                                              typename Pair::Value::State& state) {
  constexpr int kTiles = kTilesOfWarp<kPageWarps<Pair>>;
  float s[kTiles][4];
  Pair::Key::score(args, tables, ring.wait(), query, lane, s);
  ring.release();
  cap_scores<Pair>(args, s);
  if (may_be_masked(args, page))
    mask_scores(args, segment, page, part_of_page<kPageWarps<Pair>>() * (kTiles / 2), lane, s);
  online_softmax<Pair>(args, s, acc, state);
  Pair::Value::mix(args, tables, ring.wait(), s, lane, acc.out, state);
  ring.release();
}

// Tokens at the beginning of an unquantized unit that lie before the sequence's window.
__device__ __forceinline__ int hidden_tokens(const DecodeArgs& args, const Segment& segment, int unit) {
  const bool is_first = segment.n_sealed == 0 && unit == segment.n_protected;
  return args.first_tokens == nullptr || !is_first ? 0 : args.first_tokens[segment.seq];
}

// An unquantized page of n > 0 tokens, of which the first `hidden` are masked out. A loop over tiles of 16
// tokens, and not the same code for each: in a model, where other kernels run between layers, instructions
// come from memory whenever they are needed for the first time. Warps that share a ring take tiles in turn.
template <class Pair, int D>
__device__ __forceinline__ void attend_plain(const DecodeArgs& args, int hidden, int n, const Query<D>& query,
                                             int lane, RingReader& ring, Accumulator<D>& acc) {
#pragma unroll 1
  for (int first = 0; first < n; first += kTileTokens) {
    if (first / kTileTokens % kPageWarps<Pair> != part_of_page<kPageWarps<Pair>>()) {
      for (int side = 0; side < 2; ++side) {
        ring.wait();
        ring.release();
      }
      continue;
    }
    float s[1][4];
    const auto* keys = reinterpret_cast<const uint4*>(ring.wait()) + lane;
    score_tile(
        query, [&](int k) { return keys[k * kLanes]; }, s);
    ring.release();
    weigh_tile<Pair>(args, hidden - first, n - first, lane, s, acc);
    const auto* values = reinterpret_cast<const uint4*>(ring.wait()) + lane;
    mix_tile(
        s, n - first, lane, [&](int m) { return values[m * kLanes]; }, acc);
    ring.release();
  }
}

template <class Pair, int D>
__device__ void consume(const DecodeArgs& args, unsigned char* shared, const Rings& rings) {
  __syncthreads();
  WorkRange range(args);
  // In this order: what precedes a kernel's predecessor is then over before the kernel begins. So a launch
  // that follows another on other heads need not wait for it before its own end.
  if (args.follows == 0) wait_for_predecessors();
  admit_successors();
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  auto& buffer = *reinterpret_cast<MergeBuffer<D>*>(shared + args.merge_at);
  const int of_ring = warp / kPageWarps<Pair>;
  RingReader ring{rings, shared + args.ring_at + of_ring * rings.stages * rings.slot_bytes, of_ring};
  const int n_threads = rings.n * kPageWarps<Pair> * kLanes;
  Segment segment;
  int last = kNoUnit;  // number of the unit before
  [[maybe_unused]] int tables_of = -1;
  // The vote tells the compiler that all lanes go the same way, and the loop may use uniform registers:
  // without it look-ups in tables took an addition more each.
  while (__any_sync(~0U, range.next(segment))) {
    if constexpr (Pair::kTablesPerHead) {
      if (segment.head != tables_of) {
        named_barrier(1, n_threads);
        Pair::build_tables(args, shared, segment.head, threadIdx.x, n_threads);
        named_barrier(1, n_threads);
        tables_of = segment.head;
      }
    }
    const Query<D> query = load_query<D>(args, segment.seq, segment.head, lane);
    Accumulator<D> acc = {};
    acc.max[0] = acc.max[1] = kNoScore;
    int number;
    if constexpr (Pair::kSealed) {
      const int sealed_end = min(segment.last, segment.n_sealed);
      const int end = segment.number_of(sealed_end);
      if constexpr (requires { &Pair::attend; }) {
        if (segment.first < sealed_end) {
          typename Pair::State state(args, segment, lane);
          for (; (number = ring.next_unit(last)) < end; last = number)
            Pair::attend(args, shared, segment, segment.unit_of(number), query, lane, ring, state);
          if constexpr (requires { &Pair::flush; }) Pair::flush(args, shared, lane, ring, state);
          Pair::finish(state, lane, acc);
        }
      } else {
        typename Pair::Value::State state;
        for (; (number = ring.next_unit(last)) < end; last = number)
          attend_sealed<Pair, D>(args, shared, segment, segment.unit_of(number), query, lane, ring, acc,
                                 state);
        Pair::Value::finish(args, acc.out, state);
      }
    }
    const int end = segment.number_of(segment.last);
    for (; (number = ring.next_unit(last)) < end; last = number)
      attend_plain<Pair>(args, hidden_tokens(args, segment, segment.unit_of(number)),
                         plain_tokens(args, segment, segment.unit_of(number)), query, lane, ring, acc);
    leave_segment<D>(args, range, segment, acc, buffer, threadIdx.x, n_threads);
  }
  if (args.follows != 0) wait_for_predecessors();
}

// The copying warp. What it reads before its predecessors are over is complete: no kernel begins before the
// one that makes the schedule is over.
template <class Pair, int D>
__device__ void copy_pages(const DecodeArgs& args, const unsigned char* shared, const Rings& rings) {
  constexpr bool kKeysOnly = requires {
    Pair::kValueIdsAt;
  };
  std::uint32_t value_ids = 0;
  if constexpr (kKeysOnly) value_ids = shared_address(shared + Pair::kValueIdsAt);
  PageCopier<D, kKeysOnly> copier(args, rings, threadIdx.x % kLanes, value_ids);
  const bool at_once = args.settled != 0 || args.follows != 0;
  if (at_once) copier.begin();
  __syncthreads();
  if (!at_once) {
    wait_for_predecessors();
    copier.begin();
  }
  copier.end_if_idle();
  // Lanes together: one by one, their polling takes instructions and shared memory from the consumers.
  if constexpr (Architecture::kBulkCopies) {
    while (__any_sync(~0U, copier.live()))
      if (copier.live()) copier.poll();
  } else {
    while (__any_sync(~0U, copier.live())) copier.poll_together();
  }
}

// Consumer warps of a CTA, at most: with fewer, each may use more registers.
template <class Pair>
constexpr int max_warps() {
  if constexpr (requires { Pair::kMaxWarps; }) return Pair::kMaxWarps;
  return kMaxConsumerWarps;
}

template <class Pair, int D>
__global__ void __launch_bounds__((max_warps<Pair>() + 1) * kLanes, 1)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  static_assert(kPageWarps<Pair> == 1 || kPageWarps<Pair> == 2);
  const Rings rings(args, shared, kPageWarps<Pair> - 1);
  rings.init(kPageWarps<Pair> * kLanes);
  if constexpr (!Pair::kTablesPerHead) Pair::build_tables(args, shared, 0, threadIdx.x, blockDim.x);
  if (threadIdx.x / kLanes < rings.n * kPageWarps<Pair>) {
    consume<Pair, D>(args, shared, rings);
  } else {
    copy_pages<Pair, D>(args, shared, rings);
  }
}

}  // namespace kvant::cuda
