// Defines the decode attention kernel, which attends to the pages of all sequences and KV heads of a launch.
// CTAs are persistent, and each consumer warp of a CTA attends independently to pages of the CTA's range. The
// copying warp keeps a ring of pages in shared memory filled for each consumer warp (page_copier.cuh). At the
// end of each sequence in the range, the warps merge their results. If no other CTA holds parts of the
// sequence, the warps write the output. Otherwise, they write a partial result (leave_segment.cuh). A pair
// (pairs/*.cuh) supplies the code for its formats.
#pragma once

#include <type_traits>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/decode_args.h"
#include "device/cuda/decode/leave_segment.cuh"
#include "device/cuda/decode/online_softmax.cuh"
#include "device/cuda/decode/page_copier.cuh"
#include "device/cuda/decode/plain_tile.cuh"
#include "device/cuda/decode/query.cuh"
#include "device/cuda/decode/work_range.cuh"
#include "device/cuda/page/row_channels.cuh"

namespace kvant::cuda {

// Barriers from this number on serve the warps that share a ring. Barriers 0 and 1 serve all warps.
inline constexpr int kFirstRingBarrier = 2;

// Holds a lane's scores of a page, which later become weights. The first index is the tile of 16 tokens. For
// lane 4g + t, a tile holds row g and then row g + 8, each with heads 2t and 2t + 1.
using Scores = float[kTokenTiles][4];

// Reads a ring for one consumer warp. The reader knows the next slot and the parity of that slot's barriers.
struct RingReader {
  const Rings& rings;
  // Slot 0 of the ring begins here.
  const unsigned char* first;
  // Rings are numbered within the CTA.
  int index;
  int stage = 0;
  std::uint32_t parity = 0;
  // Slots whose values arrive later have one parity bit each (pairs/skipping.cuh).
  std::uint32_t value_parities = 0;

  // Returns the number of the warp's next unit after `last` within the CTA's range, or INT_MAX.
  __device__ int next_unit(int last) const {
    do {
      const int number = load_shared(rings.unit(index, stage));
      if (number > last) return number;
    } while (load_shared(rings.last_unit(index)) != last);
    return INT_MAX;
  }
  __device__ const unsigned char* slot() const { return first + stage * rings.slot_bytes; }
  __device__ const unsigned char* wait() const {
    barrier_wait(rings.full(index, stage), parity);
    return slot();
  }
  // noted_unit() and is_full() do not wait. noted_unit() returns the number of the unit that begins in the
  // slot, or the number of an earlier unit. is_full() says whether the slot is full.
  __device__ int noted_unit() const { return load_shared(rings.unit(index, stage)); }
  __device__ bool is_full() const { return barrier_test(rings.full(index, stage), parity); }
  // Marks that this lane has read the slot. The slot is free once all lanes of the ring's warps have called
  // release().
  __device__ void release() {
    release_kept(stage);
    keep();
  }
  // Advances to the next slot without releasing the current slot. The caller releases that slot later with
  // release_kept().
  __device__ void keep() {
    if (++stage == rings.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void release_kept(int of_stage) const { barrier_arrive(rings.empty(index, of_stage)); }
};

// Several warps share a ring in one of three ways: by tokens, by channels or by columns. No kernel combines
// two of the ways.
//
// Two warps share a ring by tokens if one warp has too few registers for its part of a page (heads of 256).
// If CTAs have few pages, up to four warps share a ring by tokens, which shortens the time of the last page
// (Pair::OfShort). Each warp then attends to a part of neighbouring tokens of every page.
//
// With heads of 512, four warps share a ring, each with a block of every page's channels (page_layout.h). The
// warps add their partial scores in the memory of the merge buffer, and all warps compute the same weights
// from the sums. Each warp accumulates its own channels.
//
// If a sequence has several queries (SeveralArgs), up to four warps share a ring by columns. Each warp
// attends to every page with a separate set of eight columns (query_columns.cuh). If a pair defines
// Pair::Strips, the warps also share the decoding of pages (shared_decoding.cuh, or warpgroup_decoding.cuh on
// Hopper).
//
// kPageWarps is the number of warps that share a ring by tokens.
template <class Pair>
inline constexpr int kPageWarps = 1;
template <class Pair>
requires requires {
  Pair::kPageWarps;
}
inline constexpr int kPageWarps<Pair> = Pair::kPageWarps;

// This many warps share a ring, by tokens or by channels.
template <class Pair, int D>
inline constexpr int kRingWarps = kPageWarps<Pair>* channel_warps(D);

// Adds the scores that warps have computed from their blocks of channels. All warps that share the ring add
// in the same order, so all warps get the same bits. The buffer holds the parts as [block][tile][lane].
template <int D>
struct ScoreSums {
  float4 of[channel_warps(D)][kTokenTiles][kLanes];
};
template <int D, class Args, int Tiles>
__device__ __forceinline__ void add_blocks(const Args& args, unsigned char* shared, int lane,
                                           float (&s)[Tiles][4]) {
  constexpr int kWarps = channel_warps(D);
  if constexpr (kWarps > 1) {
    const int ring = static_cast<int>(threadIdx.x) / kLanes / kWarps;
    auto& sums = reinterpret_cast<ScoreSums<D>*>(shared + args.merge_at)[ring];
    const int own = own_block<D>();
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile)
      sums.of[own][tile][lane] = make_float4(s[tile][0], s[tile][1], s[tile][2], s[tile][3]);
    named_barrier(kFirstRingBarrier + ring, kWarps * kLanes);
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      float4 sum = sums.of[0][tile][lane];
#pragma unroll
      for (int block = 1; block < kWarps; ++block) {
        const float4 part = sums.of[block][tile][lane];
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
      }
      s[tile][0] = sum.x;
      s[tile][1] = sum.y;
      s[tile][2] = sum.z;
      s[tile][3] = sum.w;
    }
    // The next page's scores must not overwrite sums that another warp still reads.
    named_barrier(kFirstRingBarrier + ring, kWarps * kLanes);
  }
}

// Returns the index of this warp's part of each page. A part has kTilesOfWarp tiles.
template <int PageWarps>
__device__ __forceinline__ int part_of_page() {
  return PageWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / kLanes % PageWarps;
}
template <int PageWarps>
inline constexpr int kTilesOfWarp = kTokenTiles / PageWarps;

// Returns whether some tokens of a sealed page may be hidden from columns.
__device__ __forceinline__ bool may_be_masked(const DecodeArgs& args, const Segment&, int page) {
  return args.masks != nullptr || (page == 0 && (args.sink > 0 || args.first_tokens != nullptr));
}
// Windows of consecutive queries may begin in two different pages, so the second page also needs a mask.
__device__ __forceinline__ bool may_be_masked(const DecodeArgs& args, const QuerySegment&, int page) {
  return args.masks != nullptr || (page == 0 && args.sink > 0) || (page <= 1 && args.first_tokens != nullptr);
}

// Returns how many of a page's first tokens are hidden from a warp's column.
__device__ __forceinline__ int hidden_of_page(const DecodeArgs& args, const Segment& segment, int page, int) {
  if (page != 0) return 0;
  return args.first_tokens == nullptr ? args.sink : max(args.sink, args.first_tokens[segment.seq]);
}
__device__ __forceinline__ int hidden_of_page(const DecodeArgs& args, const QuerySegment& segment, int page,
                                              int column) {
  return max(page == 0 ? args.sink : 0, segment.hidden(args, column) - page * kPageTokens);
}

// Returns a mask of a sealed page's protected tokens, 32 tokens a word, or null if no page has one.
__device__ __forceinline__ const std::uint32_t* masks_of_page(const DecodeArgs& args, const Segment& segment,
                                                              int page) {
  if (args.masks == nullptr) return nullptr;
  return reinterpret_cast<const std::uint32_t*>(args.masks + segment.seq * args.mask_seq_stride +
                                                segment.head * args.mask_head_stride + page);
}

// Returns a word whose first n bits are set.
__device__ __forceinline__ std::uint32_t first_bits(int n) {
  return n >= 32 ? ~0U : (1U << max(n, 0)) - 1;
}

// Returns a mask of the 32 tokens in tiles 2 * group and 2 * group + 1 of a sealed page. A bit is set if the
// token is hidden from the warp's column.
template <class Part>
__device__ __forceinline__ std::uint32_t mask_word(const DecodeArgs& args, const Part& segment, int page,
                                                   int group, int column) {
  const std::uint32_t* masks = masks_of_page(args, segment, page);
  return (masks == nullptr ? 0 : masks[group]) |
         first_bits(hidden_of_page(args, segment, page, column) - 32 * group);
}

// Sets the scores of tokens that are hidden from a column to -infinity. `s` holds the tiles from 2 *
// first_group on, for eight columns from the warp's column `first_column` on. The code is small, because it
// is part of a loop that rarely needs the code.
template <int Tiles, class Part>
__device__ __forceinline__ void mask_columns(const DecodeArgs& args, const Part& segment, int page,
                                             int first_group, int first_column, int lane,
                                             float (&s)[Tiles][4]) {
  static_assert(Tiles % 2 == 0);
  const std::uint32_t* masks = masks_of_page(args, segment, page);
  int hidden[2];
#pragma unroll
  for (int h = 0; h < 2; ++h)
    hidden[h] = hidden_of_page(args, segment, page, first_column + lane % 4 * 2 + h) - 32 * first_group;
#pragma unroll
  for (int group = 0; group < Tiles / 2; ++group) {
    const std::uint32_t word = masks == nullptr ? 0 : masks[first_group + group];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t bits = (word | first_bits(hidden[h] - 32 * group)) >> (lane / 4 * 4);
#pragma unroll
      for (int row = 0; row < 4; ++row)
        if ((bits >> row) & 1) s[2 * group + row / 2][row % 2 * 2 + h] = -INFINITY;
    }
  }
}
// Masks the scores of the warp's own eight columns.
template <int Tiles, class Part>
__device__ __forceinline__ void mask_scores(const DecodeArgs& args, const Part& segment, int page,
                                            int first_group, int lane, float (&s)[Tiles][4]) {
  mask_columns(args, segment, page, first_group, 0, lane, s);
}

// Attends to the warp's part of a sealed page by computing scores, softmax weights and sums of values. The
// pair supplies Key::score and Value::mix. A pair with separate sums supplies State, attend and finish
// instead. Every pair also builds its tables in shared memory.
template <class Pair, int D, class Part>
__device__ __forceinline__ void attend_sealed(const DecodeArgs& args, const unsigned char* tables,
                                              const Part& segment, int page, const Query<D>& query, int lane,
                                              RingReader& ring, Accumulator<D>& acc,
                                              typename Pair::Value::State& state) {
  constexpr int kTiles = kTilesOfWarp<kPageWarps<Pair>>;
  float s[kTiles][4];
  Pair::Key::score(args, tables, ring.wait(), query, lane, s);
  ring.release();
  cap_scores<Pair>(args, s);
  if (may_be_masked(args, segment, page))
    mask_scores(args, segment, page, part_of_page<kPageWarps<Pair>>() * (kTiles / 2), lane, s);
  online_softmax<Pair>(args, s, acc, state);
  Pair::Value::mix(args, tables, ring.wait(), s, lane, acc.out, state);
  ring.release();
}

// Returns how many tokens at the start of an unquantized unit lie before the sequence's window.
__device__ __forceinline__ int hidden_tokens(const DecodeArgs& args, const Segment& segment, int unit) {
  const bool is_first = segment.n_sealed == 0 && unit == segment.n_protected;
  return args.first_tokens == nullptr || !is_first ? 0 : args.first_tokens[segment.seq];
}

// Returns which tokens of an unquantized unit are visible to each column.
__device__ __forceinline__ SeenTokens seen_tokens(const DecodeArgs& args, const Segment& segment, int unit,
                                                  int) {
  const int hidden = hidden_tokens(args, segment, unit);
  return {hidden, plain_tokens(args, segment, unit)};
}
__device__ __forceinline__ SeenTokensOfTwo seen_tokens(const DecodeArgs& args, const QuerySegment& segment,
                                                       int unit, int lane) {
  const int n = plain_tokens(args, segment, unit);
  // The unit begins this many tokens after the start of the tail.
  const int first = (unit - segment.n_sealed - segment.n_protected) * kPageTokens;
  SeenTokensOfTwo seen{{{0, n}, {0, n}}, n};
  // Protected pages lie before the tail, and all their tokens are visible to every column.
  if (first < 0) return seen;
  const int tail = args.tail_tokens[segment.seq];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int column = lane % 4 * 2 + h;
    seen.columns[h].n = tail - segment.n_later(args, column) - first;
    seen.columns[h].hidden = segment.hidden(args, column) - segment.n_sealed * kPageTokens - first;
  }
  return seen;
}

// Attends to an unquantized page with at least one token that is visible to the columns. D is the head size.
// The loop over tiles of 16 tokens is not unrolled, because small code matters here. In a model, other
// kernels evict the code between two layers. Warps that share pages by tokens take tiles in turn.
template <class Pair, int D, class Seen>
__device__ __forceinline__ void attend_plain(const DecodeArgs& args, unsigned char* shared, const Seen& seen,
                                             const Query<block_dim(D)>& query, int lane, RingReader& ring,
                                             Accumulator<block_dim(D)>& acc) {
  const int n = seen.n;
  // The lane reads a tile from this piece of 16 bytes on.
  const int first_piece = own_block<D>() * (block_dim(D) / 16) * kLanes + lane;
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
    const auto* keys = reinterpret_cast<const uint4*>(ring.wait()) + first_piece;
    score_tile(
        query, [&](int k) { return keys[k * kLanes]; }, s);
    ring.release();
    add_blocks<D>(args, shared, lane, s);
    weigh_tile<Pair>(args, seen.from(first), lane, s, acc);
    const auto* values = reinterpret_cast<const uint4*>(ring.wait()) + first_piece;
    mix_tile(
        s, n - first, lane, [&](int m) { return values[m * kLanes]; }, acc);
    ring.release();
  }
}

// Returns log2 of the number of warps that share a ring by columns.
__device__ __forceinline__ constexpr int sharers_log2(const DecodeArgs&) {
  return 0;
}
__device__ __forceinline__ int sharers_log2(const SeveralArgs& args) {
  return args.queries.sharers_log2;
}

// Says whether a pair's kernels have registers for early queries (hastens_queries). Kernels without such
// registers took 2 to 4 % longer for their pages when they loaded queries early.
template <class Pair>
inline constexpr bool kHastensQueries = true;
template <class Pair>
requires requires {
  Pair::kHastensQueries;
}
inline constexpr bool kHastensQueries<Pair> = Pair::kHastensQueries;

// Returns whether queries should be loaded early, which pays if pages are read before predecessors have
// finished. Kernels for several queries have no registers for early queries.
template <class Pair>
__device__ __forceinline__ bool hastens_queries(const DecodeArgs& args) {
  return kHastensQueries<Pair> && args.settled != 0;
}
template <class Pair>
__device__ __forceinline__ constexpr bool hastens_queries(const SeveralArgs&) {
  return false;
}

// Waits for predecessors and then admits successors. Every read of data that predecessors may have written
// must come after this call. The order guarantees that, when a kernel begins, its predecessor's predecessors
// have finished. A launch that follows another launch of its call waits only before its own end.
__device__ __forceinline__ void take_turn(const DecodeArgs& args) {
  if (args.follows == 0) wait_for_predecessors();
  admit_successors();
}

// Says whether the warps of a CTA keep rounded queries in shared memory. One warp rounds each query head, and
// the others need not round it again. With several queries, warps may have different columns.
template <class Pair, class Args>
inline constexpr bool kKeepsRows = std::is_same_v<Args, DecodeArgs>&& requires {
  typename Pair::QueryRows;
};

// Rounds and stores the segment's queries. Warps take query heads in turn.
template <int D, class Rows>
__device__ __forceinline__ void keep_query_rows(const DecodeArgs& args, const Segment& segment, int warp,
                                                int n_warps, int lane, Rows& rows) {
  constexpr int kOwn = D / kLanes;  // neighbouring channels of a lane
#pragma unroll 1
  for (int head = warp; head < args.n_queries; head += n_warps) {
    const std::int64_t row =
        segment.seq * args.q_seq_stride + (segment.head * args.group + head) * args.q_head_stride;
    float x[kOwn] = {};
    if (lane * kOwn < args.q_channels)
      load_channels(args.q, {args.q_type, /*is_wide=*/1}, row + lane * kOwn, x);
    rows.store(head, x, args.softmax_scale_log2, lane);
  }
}

// Returns the state of a pair with separate sums.
template <class Pair, class Args, class Part>
__device__ __forceinline__ auto state_of_segment(const Args& args, const unsigned char* shared,
                                                 const Part& segment, int lane) {
  if constexpr (kKeepsRows<Pair, Args>)
    return
        typename Pair::State(*reinterpret_cast<const typename Pair::QueryRows*>(shared + Pair::kQueryRowsAt),
                             args.n_queries, lane);
  else
    return typename Pair::State(args, segment, lane);
}

// Runs a consumer warp. This function and all its callees are inlined by force. Otherwise the compiler would
// turn parts of a large kernel into functions. Arguments and rings would then have addresses, and each page
// would wait for loads of values that are constants when inlined.
template <class Pair, int D, class Args>
__device__ __forceinline__ void consume(const Args& args, unsigned char* shared, const Rings& rings) {
  using Part = std::conditional_t<std::is_same_v<Args, SeveralArgs>, QuerySegment, Segment>;
  __syncthreads();
  WorkRange<WarpPlace> range(args);
  if (!hastens_queries<Pair>(args)) take_turn(args);
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  auto& buffer = *reinterpret_cast<MergeBuffer<D>*>(shared + args.merge_at);
  const int of_ring = (warp >> sharers_log2(args)) / kRingWarps<Pair, D>;
  RingReader ring{rings, shared + args.ring_at + of_ring * rings.stages * rings.slot_bytes, of_ring};
  const int n_threads = (rings.n << sharers_log2(args)) * kRingWarps<Pair, D> * kLanes;
  Part segment;
  int last = kNoUnit;  // the number of the previous unit
  [[maybe_unused]] int tables_of = -1;
  // The vote tells the compiler that all lanes branch alike, so the loop may use uniform registers. Without
  // the vote, each table look-up took one more addition.
  while (__any_sync(~0U, range.next(segment))) {
    // The warp waits only after it has loaded the position of its queries.
    const bool waits = hastens_queries<Pair>(args) && segment.before == 0;
    if (waits) take_turn(args);
    if constexpr (Pair::kTablesPerHead) {
      if (segment.head != tables_of) {
        named_barrier(1, n_threads);
        Pair::build_tables(args, shared, segment.head, threadIdx.x, n_threads);
        named_barrier(1, n_threads);
        tables_of = segment.head;
      }
    }
    Query<block_dim(D)> query;
    if constexpr (kKeepsRows<Pair, Args>) {
      auto& rows = *reinterpret_cast<typename Pair::QueryRows*>(shared + Pair::kQueryRowsAt);
      keep_query_rows<D>(args, segment, warp, n_threads / kLanes, lane, rows);
      named_barrier(1, n_threads);
      if (waits && threadIdx.x == 0) store_shared(rings.have_queries(), 1);
    } else {
      query = load_query<D>(args, segment, lane);
      if (waits && threadIdx.x == 0) store_shared(rings.have_queries(), __float_as_int(query.factor[0]) | 1);
    }
    // One copy in shared memory serves all warps, because they stay in the same segment until they merge.
    if constexpr (requires { Pair::kQueryAt; }) {
      if (warp == 0) KeptQuery<D>::store(query, shared + Pair::kQueryAt, lane);
      named_barrier(1, n_threads);
    }
    Accumulator<block_dim(D)> acc = {};
    acc.max[0] = acc.max[1] = kNoScore;
    // add_blocks() reuses the memory of the merge buffer, so all warps must have read the buffer.
    if (channel_warps(D) > 1 && segment.before > 0) named_barrier(1, n_threads);
    int number;
    if constexpr (Pair::kSealed) {
      const int sealed_end = min(segment.last, segment.n_sealed);
      const int end = segment.number_of(sealed_end);
      if constexpr (requires { typename Pair::State; }) {
        if (segment.first < sealed_end) {
          auto state = state_of_segment<Pair>(args, shared, segment, lane);
          if constexpr (requires { &Pair::State::begin; }) state.begin(shared, query, lane);
          if constexpr (requires { Pair::kLooksAhead; }) {
            last = Pair::attend_to_pages(args, shared, segment, last, end, lane, ring, state);
          } else {
            for (; (number = ring.next_unit(last)) < end; last = number)
              Pair::attend(args, shared, segment, segment.unit_of(number), query, lane, ring, state);
          }
          if constexpr (requires { &Pair::flush; }) Pair::flush(args, shared, lane, ring, state);
          if constexpr (requires { &Pair::State::own_query; }) query = state.own_query(lane);
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
    number = ring.next_unit(last);
    // Only unquantized pages need this query, and the loop over sealed pages has no registers for it.
    if constexpr (kKeepsRows<Pair, Args>)
      if (number < end) query = load_query<D>(args, segment, lane);
    for (; number < end; number = ring.next_unit(last)) {
      attend_plain<Pair, D>(args, shared, seen_tokens(args, segment, segment.unit_of(number), lane), query,
                            lane, ring, acc);
      last = number;
    }
    leave_segment<D>(args, sharers_log2(args), range, segment, acc, buffer, thread_here(), n_threads);
  }
  // A CTA without segments has not taken its turn in the loop.
  if (hastens_queries<Pair>(args)) take_turn(args);
  if (args.follows != 0) wait_for_predecessors();
}

// Runs the copying warp. No kernel begins before the schedule kernel has finished, so the schedule may be
// read before predecessors finish.
template <class Pair, int D, class Args>
__device__ __forceinline__ void copy_pages(const Args& args, const unsigned char* shared,
                                           const Rings& rings) {
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
  // Lanes poll together, because separate polling would take instructions and shared memory bandwidth from
  // the consumers.
  if constexpr (Architecture::kBulkCopies) {
    bool slowly = hastens_queries<Pair>(args) && copier.begins_slowly();
    while (__any_sync(~0U, copier.live())) {
      const bool may = slowly ? copier.may_poll(slowly) : copier.live();
      if (may) copier.poll();
    }
  } else {
    while (__any_sync(~0U, copier.live())) copier.poll_together();
  }
}

// Returns the largest number of consumer warps of a CTA for a pair. With fewer warps, each may use more
// registers.
template <class Pair>
constexpr int max_warps() {
  if constexpr (requires { Pair::kMaxWarps; }) return Pair::kMaxWarps;
  return kMaxConsumerWarps;
}

// Says whether the GPUs that this code is compiled for run the pair's kernel. A kernel for Hopper alone sets
// kForHopper to true, and a kernel for other GPUs alone sets kForHopper to false.
template <class Pair>
inline constexpr bool kRunsHere = true;
template <class Pair>
requires requires {
  Pair::kForHopper;
}
inline constexpr bool kRunsHere<Pair> = Pair::kForHopper == Architecture::kWarpgroupProducts;

// Says whether consumer warps form warpgroups. The copying warp then belongs to a warpgroup whose other three
// warps are idle, and consumers get the registers that this warpgroup gives up.
template <class Pair>
inline constexpr bool kInWarpgroups = requires {
  Pair::kRegisters;
};
template <class Pair>
inline constexpr int kCopyingWarps = kInWarpgroups<Pair> ? kWarpgroupWarps : 1;

// Sets up rings and tables, and lets each warp consume or copy.
template <class Pair, int D, class Args>
__device__ __forceinline__ void run_warp(const Args& args, unsigned char* shared) {
  constexpr int kRingWarpsLog2 = kRingWarps<Pair, D> / 2;
  static_assert(1 << kRingWarpsLog2 == kRingWarps<Pair, D>);  // Rings have 1, 2 or 4 warps.
  const Rings rings(args, shared, sharers_log2(args) + kRingWarpsLog2);
  rings.init((kRingWarps<Pair, D> * kLanes) << sharers_log2(args));
  if constexpr (!Pair::kTablesPerHead) Pair::build_tables(args, shared, 0, threadIdx.x, blockDim.x);
  if (threadIdx.x / kLanes < (rings.n << sharers_log2(args)) * kRingWarps<Pair, D>) {
    if constexpr (kInWarpgroups<Pair>) take_registers<Pair::kRegisters>();
    consume<Pair, D>(args, shared, rings);
  } else {
    if constexpr (kInWarpgroups<Pair>) {
      give_up_registers<Pair::kRegistersOfCopier>();
      if (threadIdx.x / kLanes % kCopyingWarps<Pair> != 0) {
        __syncthreads();
        return;
      }
    }
    copy_pages<Pair, D>(args, shared, rings);
  }
}

// Runs one CTA. Args is DecodeArgs or SeveralArgs.
template <class Pair, int D, class Args>
__global__ void __launch_bounds__((max_warps<Pair>() + kCopyingWarps<Pair>)*kLanes, 1)
    decode_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if constexpr (kRunsHere<Pair>) run_warp<Pair, D>(args, shared);
}

}  // namespace kvant::cuda
