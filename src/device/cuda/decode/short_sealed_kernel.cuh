// Computes decode attention of short sequences with some sealed pages. As in short_kernel.cuh, a cluster of
// CTAs serves each sequence and KV head, appends a new token, and combines results in shared memory. Sealed
// pages are read by the code of the general kernel's pairs (pairs/*.cuh). Each warp, or several warps that
// share pages by tokens, has a ring of slots that one lane fills.
//
// There are usually more warps than pages, so the time of one page determines the kernel's time. If a pair
// supports sharing (Pair::OfShort), two or four warps share each page.
#pragma once

#include <climits>

#include "device/cuda/decode/decode_kernel.cuh"
#include "device/cuda/decode/short_combine.cuh"
#include "device/cuda/decode/short_parts.cuh"

namespace kvant::cuda {

// Selects the pair whose code reads pages of short sequences.
template <class Pair>
struct ShortPairOf {
  using type = Pair;
};
template <class Pair>
requires requires {
  typename Pair::OfShort;
} &&(!requires { typename Pair::OfShortAlone; }) struct ShortPairOf<Pair> {
  using type = typename Pair::OfShort;
};
// Other kernels may use OfShort, too. OfShortAlone has code for kernels of short sequences alone.
template <class Pair>
requires requires {
  typename Pair::OfShortAlone;
}
struct ShortPairOf<Pair> {
  using type = typename Pair::OfShortAlone;
};

// Holds the queries in the form that a pair of formats keeps, if the pair has such a form.
template <class Pair>
struct KeptRows {
  template <int N>
  __device__ void store(int, const float (&)[N], float, int) {}
};
template <class Pair>
requires requires {
  typename Pair::QueryRows;
}
struct KeptRows<Pair> : Pair::QueryRows {};

// Holds the static shared memory of a CTA.
template <class Pair, int D>
struct SharedOfPair : ShortSealedShared<D> {
  KeptRows<Pair> kept;
};

// Describes a sequence and KV head whose queries lie in shared memory.
template <int D>
struct ShortSegment : Segment {
  const QueryRows<D>* shared;
  int n_queries;
};

// Loads a column's channels from shared memory, in place of the function in query.cuh that loads them from
// global memory.
template <int D>
__device__ __forceinline__ void load_query_channels(const DecodeArgs&, const ShortSegment<D>& segment,
                                                    int column_of_warp, int t, float (&x)[D / 4]) {
  segment.shared->read_query(column_of_warp, segment.n_queries, t, x);
}

// Describes which sealed pages a ring gets: `first` and every `step`th page after it.
struct RingPages {
  int ring;  // index of the ring within the CTA
  int first, step;
  // If `copies` is true, this lane copies pages for the ring.
  bool copies;

  template <int PageWarps>
  static __device__ __forceinline__ RingPages of(const Rings& rings, const ShortPlace& at) {
    const int ring = at.warp / PageWarps;
    const bool exists = ring < rings.n;
    return {ring, exists ? ring * at.n_ctas + at.cta : INT_MAX, rings.n * at.n_ctas,
            exists && at.warp % PageWarps == 0 && at.lane == 0};
  }
};

// Starts copying both sides of a sealed page into neighbouring slots.
__device__ __forceinline__ void copy_sealed(const DecodeArgs& args, const Rings& rings, int ring, int stage,
                                            int2 ids, int head) {
  if constexpr (Architecture::kBulkCopies) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const std::uint32_t full = rings.full(ring, stage + side);
      const int bytes = args.page_bytes(head, side);
      expect_bytes(full, bytes);
      bulk_copy(rings.slot(ring, stage + side), args.sealed.at(side == 0 ? ids.x : ids.y, head, side), bytes,
                full);
    }
  }
}

// Fills the slots of a ring for the first time, with as many pages as fit. `ids` are the ids of the first
// page if the tables are known to have an entry for that page.
__device__ __forceinline__ void begin_ring(const ShortSealedArgs& args, const Rings& rings,
                                           const RingPages& pages, const ShortPlace& at, int n_sealed,
                                           int2 ids) {
  int page = pages.first;
#pragma unroll 1
  for (int stage = 0; stage < rings.stages && page < n_sealed; stage += 2, page += pages.step) {
    if (page >= args.sealed_entries || stage > 0) ids = page_ids(args.sealed.pages, at.seq, at.head, page);
    copy_sealed(args, rings, pages.ring, stage, ids, at.head);
  }
}

// Copies the page that takes the slots of the ring's nth page, after all warps of the ring have read the nth
// page.
__device__ __forceinline__ void refill_ring(const DecodeArgs& args, const Rings& rings,
                                            const RingPages& pages, const ShortPlace& at, int n_sealed,
                                            int nth) {
  const int room = rings.stages / 2;  // pages
  const int page = pages.first + (nth + room) * pages.step;
  if (page >= n_sealed) return;
  const int stage = nth % room * 2;
  const std::uint32_t parity = nth / room % 2;
  const int2 ids = page_ids(args.sealed.pages, at.seq, at.head, page);
  barrier_wait(rings.empty(pages.ring, stage), parity);
  barrier_wait(rings.empty(pages.ring, stage + 1), parity);
  copy_sealed(args, rings, pages.ring, stage, ids, at.head);
}

// Returns the state of a pair with separate sums.
template <class Pair, int D>
__device__ __forceinline__ typename Pair::State begin_state(const DecodeArgs& args,
                                                            const ShortSegment<D>& segment,
                                                            const KeptRows<Pair>& kept, int lane) {
  if constexpr (requires { typename Pair::QueryRows; })
    return typename Pair::State(kept, segment.n_queries, lane);
  else
    return typename Pair::State(args, segment, lane);
}

// Attends to the warp's part of the ring's pages.
template <class Pair, int D>
__device__ __forceinline__ void attend_ring(const ShortSealedArgs& args, unsigned char* memory,
                                            const Rings& rings, const RingPages& pages, const ShortPlace& at,
                                            const ShortSegment<D>& segment, const Query<D>& query,
                                            const KeptRows<Pair>& kept, Accumulator<D>& acc) {
  RingReader ring{rings, memory + args.ring_at + pages.ring * rings.stages * rings.slot_bytes, pages.ring};
  const auto each_page = [&](const auto& attend) {
    int nth = 0;
#pragma unroll 1
    for (int page = pages.first; page < segment.n_sealed; page += pages.step, ++nth) {
      attend(page);
      if (pages.copies) refill_ring(args, rings, pages, at, segment.n_sealed, nth);
      __syncwarp();
    }
  };
  if constexpr (requires { typename Pair::State; }) {
    auto state = begin_state<Pair>(args, segment, kept, at.lane);
    each_page([&](int page) { Pair::attend(args, memory, segment, page, query, at.lane, ring, state); });
    Pair::finish(state, at.lane, acc);
  } else {
    typename Pair::Value::State state;
    each_page([&](int page) {
      attend_sealed<Pair, D>(args, memory, segment, page, query, at.lane, ring, acc, state);
    });
    Pair::Value::finish(args, acc.out, state);
  }
}

// Holds the numbers of tokens outside sealed pages: stored tokens of the tail, protected tokens, and the new
// token.
struct PlainTiles {
  int n_stored, n_protected;  // tokens
  int n_new;
  // This many tokens at the tail's start are hidden.
  int hidden;

  static __device__ int tiles_for(int tokens) { return (tokens + kTileTokens - 1) / kTileTokens; }
  __device__ int of_tail() const { return tiles_for(n_stored); }
  __device__ int n() const { return of_tail() + tiles_for(n_protected) + n_new; }
};

// Finds a tile of stored tail tokens or protected tokens.
struct StoredTile {
  const PageSource* pages;
  int number;  // index among the tiles of its pages
  int n, hidden;

  __device__ StoredTile(const ShortSealedArgs& args, const PlainTiles& tiles, int i) {
    const bool of_tail = i < tiles.of_tail();
    pages = of_tail ? &args.tail : &args.protected_pages;
    number = of_tail ? i : i - tiles.of_tail();
    n = (of_tail ? tiles.n_stored : tiles.n_protected) - number * kTileTokens;
    hidden = (of_tail ? tiles.hidden : 0) - number * kTileTokens;
  }
};

// Attends to unquantized tiles, which are tile `first` and every `step`th tile after it. The function calls
// make_query() while the first tile's loads are in flight.
template <int D, class MakeQuery>
__device__ __forceinline__ void attend_tiles(const ShortSealedArgs& args, const PlainTiles& tiles, int first,
                                             int step, const ShortPlace& at,
                                             const ShortSealedShared<D>& shared, const MakeQuery& make_query,
                                             Accumulator<D>& acc) {
  // A tile's values are loaded before its scores are known if registers suffice.
  constexpr bool kValuesEarly = D <= 128;
  const int n_tiles = tiles.n();
  Query<D> query;
#pragma unroll 1
  for (int i = first; i < n_tiles; i += step) {
    const bool is_new = tiles.n_new != 0 && i == n_tiles - 1;
    const StoredTile tile(args, tiles, i);  // for stored tiles only
    const SeenTokens seen = is_new ? SeenTokens{0, 1} : SeenTokens{tile.hidden, tile.n};
    int2 ids{};
    uint4 keys[D / 16], values[D / 16];
    if (is_new) {
      take_key(shared.new_rows[0], at.lane, keys);
    } else {
      ids = page_ids(*tile.pages, at.seq, at.head, tile.number / kTokenTiles);
      load_tile(*tile.pages, ids.x, at.head, 0, tile.number, at.lane, keys);
    }
    const auto load_values = [&] {
      if (is_new)
        take_value(shared.new_rows[1], at.lane, values);
      else
        load_tile(*tile.pages, ids.y, at.head, 1, tile.number, at.lane, values);
    };
    if (kValuesEarly) load_values();
    if (i == first) query = make_query();
    float s[1][4];
    score_tile(
        query, [&](int k) { return keys[k]; }, s);
    if (!kValuesEarly) load_values();
    weigh_tile<ShortPair>(args, seen, at.lane, s, acc);
    mix_tile(
        s, seen.n, at.lane, [&](int m) { return values[m]; }, acc);
  }
}

// Prefetches a stored tile into the L2 cache, 128 bytes a lane. `ids` are the ids of the tile's page if the
// tile belongs to the tail.
template <int D>
__device__ __forceinline__ void prefetch_tile(const ShortSealedArgs& args, const PlainTiles& tiles, int i,
                                              int2 ids, const ShortPlace& at) {
  const StoredTile tile(args, tiles, i);
  if (i >= tiles.of_tail()) ids = page_ids(*tile.pages, at.seq, at.head, tile.number / kTokenTiles);
  constexpr int kLines = kTileTokens * D * 2 / 128;  // 128-byte lines of a side
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const auto* from = reinterpret_cast<const unsigned char*>(
        find_tile<D>(*tile.pages, side == 0 ? ids.x : ids.y, at.head, side, tile.number));
    for (int line = at.lane; line < kLines; line += kLanes) prefetch_to_l2(from + line * 128);
  }
}

// Reads a word of each line of the arguments, so the constant cache has the lines before the kernel needs
// them. Otherwise, each line would cost a wait for the L2 cache after the predecessors' end. Warps take lines
// in turn, so the waits overlap. Returns a number that depends on all words that the warp reads.
__device__ __forceinline__ std::uint32_t fetch_arguments(const ShortSealedArgs& args, int warp) {
  constexpr int kLineWords = 16;
  constexpr int kWords = static_cast<int>(sizeof(ShortSealedArgs) / 4);
  const auto* words = reinterpret_cast<const std::uint32_t*>(&args);
  std::uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < kWords; i += kShortWarps * kLineWords)
    all ^= words[min(i + warp * kLineWords, kWords - 1)];
  return all;
}

// Runs a CTA. `memory` holds the tables and the rings, whose place the warps' outputs take in the end.
template <class Pair, int D>
__device__ void attend_short_sealed(const ShortSealedArgs& args, unsigned char* memory,
                                    SharedOfPair<Pair, D>& shared) {
  constexpr int kSharers = kPageWarps<Pair>;
  static_assert(kSharers == 1 || kSharers == 2 || kSharers == 4);
  constexpr int kSharersLog2 = kSharers / 2;
  ShortPlace at;
  at.cta = static_cast<int>(blockIdx.x);
  at.n_ctas = static_cast<int>(gridDim.x);
  const int nth_head = static_cast<int>(blockIdx.y);
  const bool is_second = nth_head >= args.heads.n;
  at.head = args.heads.at[is_second ? nth_head - args.heads.n : nth_head];
  at.seq = static_cast<int>(blockIdx.z);
  at.first_query = args.first_query + (is_second ? args.n_queries : 0);
  at.n_queries = min(args.n_queries, args.end_query - at.first_query);
  // The shuffle tells the compiler that all lanes of a warp branch alike.
  at.warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kLanes, 0);
  at.lane = static_cast<int>(threadIdx.x) % kLanes;
  const Rings rings(args, memory, kSharersLog2);
  const RingPages pages = RingPages::of<kSharers>(rings, at);
  // Pages are dealt out from the first warp on, and unquantized tiles from the last warp on. Few warps
  // therefore have both.
  const int first_tile = (kShortWarps - 1 - at.warp) * at.n_ctas + at.cta;
  const int n_warps = kShortWarps * at.n_ctas;

  if (at.n_ctas > 1) {
    if (threadIdx.x == 0) shared.inbox.open({at.n_ctas, args.per_cta}, at.cta, at.n_queries);
    __syncwarp();
    cluster_arrive();
  }
  rings.init(kSharers * kLanes);
  const auto build_tables = [&] {
    Pair::build_tables(args, memory, at.head, static_cast<int>(threadIdx.x), kShortWarps * kLanes);
  };
  if constexpr (!Pair::kTablesPerHead) build_tables();
  // Settled pages, page tables and lengths are read while predecessors end.
  const bool at_once = args.settled != 0 || args.follows != 0;
  // The condition keeps the compiler from leaving out the reads. The word is 0 here, and nothing reads it.
  if (fetch_arguments(args, at.warp) == 1) store_shared(rings.have_queries(), 0);
  if (!at_once) take_turn(args);
  // Table entries are loaded before the kernel knows whether they are needed, so all loads overlap.
  int2 sealed_ids{}, tail_ids{};
  if (pages.copies && pages.first < args.sealed_entries)
    sealed_ids = page_ids(args.sealed.pages, at.seq, at.head, pages.first);
  if (first_tile / kTokenTiles < args.tail_entries)
    tail_ids = page_ids(args.tail, at.seq, at.head, first_tile / kTokenTiles);
  const int n_sealed = args.sealed_pages[at.seq];
  const int n_tail = args.tail_tokens == nullptr ? 0 : args.tail_tokens[at.seq];
  PlainTiles tiles{};
  if (args.protected_tokens != nullptr)
    tiles.n_protected =
        args.protected_tokens[at.seq * args.protected_seq_stride + at.head * args.protected_head_stride];
  if (args.first_tokens != nullptr) tiles.hidden = args.first_tokens[at.seq];
  __syncthreads();
  if (pages.copies) begin_ring(args, rings, pages, at, n_sealed, sealed_ids);
  tiles.n_new = args.sides[0].rows == nullptr || n_tail == 0 ? 0 : 1;
  tiles.n_stored = n_tail - tiles.n_new;
  // If there are sealed pages, the hidden tokens lie in sealed pages.
  if (n_sealed > 0) tiles.hidden = 0;
  const int n_tiles = tiles.n();
  // Predecessors may still write the tile. The L2 cache has whatever they write.
  if (first_tile < n_tiles - tiles.n_new) prefetch_tile<D>(args, tiles, first_tile, tail_ids, at);
  if (at_once) take_turn(args);
  if (n_sealed + n_tail + tiles.n_protected == 0) {
    if (at.n_ctas > 1) cluster_wait();
    if (args.follows != 0) wait_for_predecessors();
    return;
  }
  if constexpr (Pair::kTablesPerHead) build_tables();
  const bool has_new = tiles.n_new != 0 && (n_tiles - 1) % at.n_ctas == at.cta;
  __syncwarp();
  take_rows<D>(args, at, has_new ? tiles.n_stored : -1, shared, [&](int query, const auto& x) {
    shared.kept.store(query, x, args.softmax_scale_log2, at.lane);
  });
  __syncthreads();

  ShortSegment<D> segment{};
  segment.head = at.head;
  segment.seq = at.seq;
  segment.n_sealed = n_sealed;
  segment.shared = &shared;
  segment.n_queries = at.n_queries;
  Accumulator<D> acc = {};
  acc.max[0] = acc.max[1] = kNoScore;
  const auto attend_pages = [&](const Query<D>& query) {
    if (pages.first < n_sealed)
      attend_ring<Pair, D>(args, memory, rings, pages, at, segment, query, shared.kept, acc);
  };
  if constexpr (requires { typename Pair::QueryRows; }) {
    attend_pages({});
    // Few warps have tiles, and only these warps need this query.
    attend_tiles(
        args, tiles, first_tile, n_warps, at, shared, [&] { return load_query<D>(args, segment, at.lane); },
        acc);
  } else {
    const Query<D> query = load_query<D>(args, segment, at.lane);
    if constexpr (requires { Pair::kQueryAt; }) {
      if (at.warp == 0) KeptQuery<D>::store(query, memory + Pair::kQueryAt, at.lane);
      __syncthreads();
    }
    attend_pages(query);
    attend_tiles(
        args, tiles, first_tile, n_warps, at, shared, [&] { return query; }, acc);
  }

  combine_outputs<D>(args, at, acc, *reinterpret_cast<WarpOutputs<D>*>(memory + args.ring_at), shared);
  if (args.follows != 0) wait_for_predecessors();
}

// The grid is [sequences][KV heads of the launch, once or twice][CTAs of a cluster].
template <class Pair, int D>
__global__ void __launch_bounds__(kShortWarps* kLanes, 1)
    short_sealed_kernel(const __grid_constant__ ShortSealedArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ __align__(16) SharedOfPair<Pair, D> shared;
  if constexpr (Architecture::kBulkCopies) attend_short_sealed<Pair, D>(args, memory, shared);
}

}  // namespace kvant::cuda
