// Plans the work of a call of prefill attention. Blocks of query tokens are sorted by the number of visible
// tokens, most first, so SMs finish together. If blocks are few and equally long, the last blocks are cut,
// and several CTAs share each of these blocks.
#pragma once

#include "cache/page_counts.h"
#include "device/cuda/prompt/prompt_args.h"
#include "device/cuda/prompt/tile_layout.cuh"

namespace kvant::cuda {

inline constexpr int kPlanThreads = 256;
// Bins sort blocks by the number of visible tiles.
inline constexpr int kPlanBins = 2048;

// Describes where the queries, rows and pages of a sequence lie.
struct SequenceRows {
  int q_begin, q_tokens, k_begin, k_tokens;
  int page_begin, n_sealed;
  int first_token;  // first token of the rows, counted from the sequence's start

  __device__ __forceinline__ int tokens() const { return first_token + k_tokens; }
  __device__ __forceinline__ int row_tiles() const { return (k_tokens + kTileTokens - 1) / kTileTokens; }
};

__device__ __forceinline__ SequenceRows rows_of_sequence(const PromptArgs& args, int seq) {
  SequenceRows rows{};
  rows.q_begin = args.q_begins[seq];
  rows.q_tokens = args.q_begins[seq + 1] - rows.q_begin;
  rows.k_begin = args.k_begins[seq];
  rows.k_tokens = args.k_begins[seq + 1] - rows.k_begin;
  if (args.sealed_begins != nullptr) {
    rows.page_begin = args.sealed_begins[seq];
    rows.n_sealed = args.sealed_begins[seq + 1] - rows.page_begin;
  }
  rows.first_token =
      args.first_row_tokens != nullptr ? args.first_row_tokens[seq] : rows.n_sealed * kTileTokens;
  return rows;
}

// Returns the first sealed page that is visible to any query of the sequence. Earlier pages may have been
// freed.
__device__ __forceinline__ int first_seen_page(const PromptArgs& args, const SequenceRows& rows) {
  const int first_query = max(rows.tokens() - rows.q_tokens, 0);
  return min(first_visible_token(first_query, args.window) / kTileTokens, rows.n_sealed);
}

// Returns the number of sealed pages that a query row of a sequence reads in sealed form.
__device__ __forceinline__ int pages_seen(const PromptArgs& args, int row, int n_sealed) {
  return args.query_sealed == nullptr ? n_sealed : min(args.query_sealed[row], n_sealed);
}

// Returns the number of units of a sequence, over all heads that blocks mix.
__device__ __forceinline__ int units_of(const PromptArgs& args, const SequenceRows& rows,
                                        const BlockUnits& units) {
  return (rows.q_tokens + units.rows - 1) / units.rows * args.mixed;
}

// Returns the item of block `block` of sequence `seq`.
__device__ __forceinline__ PromptItem item_of(const PromptArgs& args, int seq, int block,
                                              const BlockUnits& units) {
  const SequenceRows rows = rows_of_sequence(args, seq);
  const int unit = block * units.n;
  const int last_unit = min(unit + units.n, units_of(args, rows, units)) - 1;
  const int first = unit / args.mixed * units.rows;
  PromptItem item;
  item.seq = seq;
  item.first_row = rows.q_begin + first;
  item.n_rows = min((last_unit / args.mixed + 1) * units.rows, rows.q_tokens) - first;
  item.first_head = unit % args.mixed;
  item.tokens = rows.tokens();
  item.n_sealed = rows.n_sealed;
  item.first_token = rows.first_token;
  // The last query token is the sequence's last token.
  item.limit = item.tokens - rows.q_tokens + first + 1;
  const int end = args.causal != 0 ? min(item.tokens, item.limit + item.n_rows - 1) : item.tokens;
  const int begin = args.window > 0 ? max(0, item.limit - args.window) : 0;
  item.end_page = pages_seen(args, item.first_row + item.n_rows - 1, rows.n_sealed);
  item.page = min(begin / kTileTokens, item.end_page);
  const int first_row = max(begin, pages_seen(args, item.first_row, rows.n_sealed) * kTileTokens);
  item.tile = min(max(first_row - rows.first_token, 0) / kTileTokens, max(rows.row_tiles() - 1, 0));
  item.end_tile = max((end - rows.first_token + kTileTokens - 1) / kTileTokens, item.tile);
  // An item has at least one tile. A block without visible tokens masks the whole tile.
  if (item.page == item.end_page) item.end_tile = max(item.end_tile, item.tile + 1);
  item.split = -1;
  item.part = item.first_cut = 0;
  item.n_parts = 1;
  item.page_slot = rows.page_begin;
  item.row_slot = args.page_slots + static_cast<int>(first_tile(rows.k_begin, seq));
  return item;
}

__device__ __forceinline__ int tiles_of(const PromptItem& item) {
  return item.end_page - item.page + item.end_tile - item.tile;
}

// Cuts a block in two parts, which are its first n tiles and the rest.
__device__ __forceinline__ void cut(const PromptItem& item, int n, PromptItem& first, PromptItem& second) {
  const int pages = min(n, item.end_page - item.page);
  first = second = item;
  first.end_page = second.page = item.page + pages;
  first.end_tile = second.tile = item.tile + n - pages;
}

// Returns whether the last of n_items blocks may be cut. Cutting pays if there are few blocks per CTA and
// some CTAs would have one block more than others.
__device__ __forceinline__ bool may_split(const PromptArgs& args, int n_items) {
  constexpr int kManyEach = 8;
  const int work = n_items * args.n_sets;
  return work % args.n_ctas != 0 && work / args.n_ctas < kManyEach;
}

// Cuts the last blocks in two if all blocks are about equally long and few per CTA. Without cuts, some CTAs
// would have one block more than others. Only blocks that remain after each CTA has had the same number of
// blocks are cut. Second parts are short, so CTAs without a first part can take several of them, and all CTAs
// finish together. One thread runs this function.
__device__ inline void split_last(const PromptArgs& args, int n_items) {
  const int n_ctas = args.n_ctas;
  const int left = n_items * args.n_heads % n_ctas;
  const int longest = tiles_of(args.items[0]);
  const int shortest = tiles_of(args.items[n_items - 1]);
  const int n_split = (left + args.n_heads - 1) / args.n_heads;
  const int halves = n_split * args.n_heads;
  if (n_split > n_items || halves > min(n_ctas, kMostHalves) || shortest * 4 < longest * 3) return;
  // The first part of a block has this share of the block's tiles.
  const float share = fmaxf(static_cast<float>(halves) / static_cast<float>(n_ctas), 0.5F);
  // A part has at least this many tiles, because joining parts takes as long as some tiles.
  constexpr int kLeastTiles = 8;
  const int first_tiles = static_cast<int>(share * static_cast<float>(shortest) + 0.5F);
  if (shortest - first_tiles < kLeastTiles) return;
  for (int i = 0; i < n_split; ++i) {
    const int at = n_items - n_split + i;
    PromptItem item = args.items[at];
    item.split = i;
    cut(item, static_cast<int>(share * static_cast<float>(tiles_of(item)) + 0.5F), args.items[at],
        args.items[n_items + i]);
  }
  *args.n_items = n_items + n_split;
}

// Describes how the blocks of the last n_items items are cut. The tiles of these blocks, in the order of
// items, form n_runs runs of equal length. With 0 runs nothing is cut.
struct Cuts {
  int n_items, n_runs;
};
// The constants are in tiles. A block's part and a run have a least length, and starting and ending a block
// or a run has a cost.
inline constexpr int kLeastPart = 6, kLeastRun = 8, kBlockCost = 2, kRunCost = 4;

// Returns the time in tiles until all CTAs are done, if each CTA takes the next piece as soon as the CTA is
// free. Cut items have at least `shortest` tiles, and other items at most `longest`. A negative result means
// that the cuts are not possible.
__device__ inline int time_of_cuts(const PromptArgs& args, const Cuts& cuts, int n_items, int longest,
                                   int shortest) {
  const int tiles = cuts.n_items * shortest;
  const int most_parts = (cuts.n_runs + cuts.n_items - 1) / cuts.n_items + 1;
  if (cuts.n_items > n_items || (cuts.n_runs - 1) * args.n_sets > kMostHalves || most_parts > kMostParts ||
      cuts.n_items + cuts.n_runs > kMostPieces || tiles < cuts.n_runs * kLeastRun)
    return -1;
  // The time of a run includes joining. The last runs to end have the most sums to add.
  const int run = (tiles + cuts.n_runs - 1) / cuts.n_runs + kRunCost + most_parts / 2;
  // `later` CTAs have one whole block more than the other CTAs.
  const int whole = (n_items - cuts.n_items) * args.n_sets;
  const int later = whole % args.n_ctas;
  const int begin = whole / args.n_ctas * (longest + kBlockCost), later_begin = begin + longest + kBlockCost;
  // The last of all runs ends at the end of some CTA's run. `time` steps through the ends of early CTAs'
  // runs, and of_later through those of the `later` CTAs.
  const int others = args.n_ctas - later, runs = cuts.n_runs * args.n_sets;
  int time = begin + run;
  for (int i = 1; i * others + later * (max(time - later_begin, 0) / run) < runs; ++i) time += run;
  if (later == 0) return time;
  int of_later = later_begin + run;
  for (int i = 1; i * later + others * ((of_later - begin) / run) < runs; ++i) of_later += run;
  return max(min(time, of_later), later_begin);
}

// Describes tiles [begin, end) of one of the last items, with the part's numbers for PromptItem.
struct Piece {
  int item, begin, end;
  int split, part, n_parts, first_cut;
};
static_assert(kMostPieces <= kPlanThreads);

// Holds the shared memory of the CTA that plans.
struct PlanShared {
  union {
    int bins[kPlanBins];
    struct {
      Piece pieces[kMostPieces];
      int n_pieces, best;
    } cut;
  };
  int sums[kPlanThreads];
  int tiles, longest;  // tiles of all items together, and tiles of the longest item
};

// Chooses the cuts if blocks have rows of several heads, in which case blocks may be cut into many parts. All
// threads must call this function.
__device__ inline Cuts choose_cuts(const PromptArgs& args, int n_items, PlanShared& shared) {
  const int longest = tiles_of(args.items[0]);
  const int shortest = tiles_of(args.items[n_items - 1]);
  const Cuts none{0, 0};
  if (shortest * 4 < longest * 3) return none;
  // Candidates cut about as many items as remain after each CTA has had the same number of blocks. They have
  // about one run per CTA.
  constexpr int kItems = 16;
  const int left = n_items * args.n_sets % args.n_ctas / args.n_sets;
  const auto cuts_of = [&](int i) {
    return Cuts{max(left - 2, 1) + i % kItems, max(args.n_ctas / args.n_sets - 7, 2) + i / kItems};
  };
  constexpr int kMostTime = 1 << 22;
  const int whole = (n_items * args.n_sets + args.n_ctas - 1) / args.n_ctas * (longest + kBlockCost);
  const int uncut = min(whole, kMostTime);
  int& best = shared.cut.best;
  if (threadIdx.x == 0) best = uncut * kPlanThreads;
  __syncthreads();
  const int time = time_of_cuts(args, cuts_of(static_cast<int>(threadIdx.x)), n_items, longest, shortest);
  if (time > 0 && time < kMostTime) atomicMin(&best, time * kPlanThreads + static_cast<int>(threadIdx.x));
  __syncthreads();
  return best / kPlanThreads < uncut ? cuts_of(best % kPlanThreads) : none;
}

// Finds the pieces of the last items and returns how many there are. `tiles` has the items' lengths. One
// thread runs this function.
__device__ inline int find_pieces(const Cuts& cuts, const int* tiles, Piece* pieces) {
  int total = 0;
  for (int i = 0; i < cuts.n_items; ++i) total += tiles[i];
  const auto begin_of = [&](unsigned run) {
    return static_cast<int>(static_cast<unsigned>(total) * run / cuts.n_runs);
  };
  int n = 0, n_cuts = 0, split = 0, run = 1, before = 0;
  for (int i = 0; i < cuts.n_items; ++i) {
    const int first = n;
    int begin = 0;
    const auto add = [&](int end) {
      pieces[n] = {i, begin, end, split, n - first, 0, n_cuts};
      ++n;
      begin = end;
    };
    // Positions close to the block's start or end are not cut.
    for (; run < cuts.n_runs; ++run) {
      const int at = begin_of(run) - before;
      if (at >= tiles[i]) break;
      if (at >= kLeastPart && at <= tiles[i] - kLeastPart) add(at);
    }
    add(tiles[i]);
    before += tiles[i];
    const int n_parts = n - first;
    for (int j = first; j < n; ++j) pieces[j].n_parts = n_parts;
    if (n_parts == 1) pieces[first].split = -1;
    if (n_parts > 1) ++split;
    n_cuts += n_parts - 1;
  }
  return n;
}

// Replaces the last items by their pieces, longest first. All threads must call this function.
__device__ inline void cut_items(const PromptArgs& args, int n_items, const Cuts& cuts, PlanShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const PromptItem* items = args.items + n_items - cuts.n_items;
  if (thread < cuts.n_items) shared.sums[thread] = tiles_of(items[thread]);
  for (int i = thread; i < args.n_claims; i += kPlanThreads) args.claims[i] = 0;
  __syncthreads();
  if (thread == 0) {
    shared.cut.n_pieces = find_pieces(cuts, shared.sums, shared.cut.pieces);
    *args.n_items = n_items - cuts.n_items + shared.cut.n_pieces;
  }
  __syncthreads();
  const int n = shared.cut.n_pieces;
  const bool is_there = thread < n;
  PromptItem item;
  int place = n_items - cuts.n_items;
  if (is_there) {
    const Piece piece = shared.cut.pieces[thread];
    item = items[piece.item];
    const int pages = item.end_page - item.page;
    item.end_page = item.page + min(piece.end, pages);
    item.end_tile = item.tile + max(piece.end - pages, 0);
    item.page += min(piece.begin, pages);
    item.tile += max(piece.begin - pages, 0);
    item.split = piece.split;
    item.part = piece.part;
    item.n_parts = piece.n_parts;
    item.first_cut = piece.first_cut;
    const int tiles = piece.end - piece.begin;
    for (int i = 0; i < n; ++i) {
      const int other = shared.cut.pieces[i].end - shared.cut.pieces[i].begin;
      place += other > tiles || (other == tiles && i < thread) ? 1 : 0;
    }
  }
  __syncthreads();
  if (is_there) args.items[place] = item;
}

// Chooses how many sets of heads attend to all items before the next sets start. CTAs drift apart in a long
// prompt. With few sets at a time, they still find tiles in the L2 cache that other CTAs have read. But each
// group of sets ends with its shortest blocks, and the next group's longest blocks follow. Each group should
// therefore give each CTA many blocks, because otherwise CTAs would end at different times.
__device__ __forceinline__ int choose_together(const PromptArgs& args, int tiles, int longest) {
  constexpr int kManyEach = 8;  // blocks as long as the longest
  const int turns = tiles / (kManyEach * max(longest, 1)) * args.n_sets / args.n_ctas;
  return turns > 1 ? (args.n_sets + turns - 1) / turns : args.n_sets;
}

// Returns the bin of an item. Bin 0 has the longest items.
__device__ __forceinline__ int bin_of(const PromptItem& item) {
  return kPlanBins - 1 - min(tiles_of(item), kPlanBins - 1);
}

// Moves blocks to the first n_items places from the places after them, where the blocks are sorted by bins
// alone. The function also sorts the blocks of each bin by their rows. ends[bin] is the end of the bin.
__device__ inline void order_bins(const PromptArgs& args, int n_items, const int (&ends)[kPlanBins]) {
  const PromptItem* from = args.items + n_items;
  for (int i = static_cast<int>(threadIdx.x); i < n_items; i += kPlanThreads) {
    const PromptItem item = from[i];
    const int bin = bin_of(item);
    const int begin = bin == 0 ? 0 : ends[bin - 1];
    int place = begin;
    for (int other = begin; other < ends[bin]; ++other)
      place += from[other].first_row < item.first_row ||
                       (from[other].first_row == item.first_row && from[other].first_head < item.first_head)
                   ? 1
                   : 0;
    args.items[place] = item;
  }
}

// Makes the plan, which lists all sequences' blocks in args.items, longest first. One CTA of kPlanThreads
// threads runs this function.
__device__ inline void plan_prompt(const PromptArgs& args, const BlockUnits& units) {
  __shared__ PlanShared shared;
  auto& bins = shared.bins;
  auto& sums = shared.sums;
  constexpr int kPerThread = kPlanBins / kPlanThreads;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kPlanBins; i += kPlanThreads) bins[i] = 0;
  if (thread == 0) shared.tiles = shared.longest = 0;
  __syncthreads();
  const auto for_each_item = [&](const auto& body) {
    for (int seq = 0; seq < args.n_seqs; ++seq) {
      const int n = (units_of(args, rows_of_sequence(args, seq), units) + units.n - 1) / units.n;
      for (int block = thread; block < n; block += kPlanThreads) {
        const PromptItem item = item_of(args, seq, block, units);
        body(item, bin_of(item));
      }
    }
  };
  for_each_item([&](const PromptItem&, int bin) { atomicAdd(&bins[bin], 1); });
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < kPerThread; ++i) sum += bins[thread * kPerThread + i];
  sums[thread] = sum;
  __syncthreads();
  for (int step = 1; step < kPlanThreads; step *= 2) {
    const int before = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
  int place = sums[thread] - sum;
  for (int i = 0; i < kPerThread; ++i) {
    const int bin = thread * kPerThread + i;
    const int n = bins[bin];
    bins[bin] = place;
    if (n == 0) continue;
    atomicAdd(&shared.tiles, n * (kPlanBins - 1 - bin));
    if (place == 0) shared.longest = kPlanBins - 1 - bin;
    place += n;
  }
  const int n_items = sums[kPlanThreads - 1];
  const bool may_be_cut = may_split(args, n_items);
  __syncthreads();
  // Blocks of equal length have any order. Outputs depend on the order only if blocks are cut, in which case
  // each call must cut the same blocks.
  PromptItem* places = may_be_cut ? args.items + n_items : args.items;
  for_each_item([&](const PromptItem& item, int bin) { places[atomicAdd(&bins[bin], 1)] = item; });
  if (units.n == 1) {
    for (int i = thread; i < args.n_claims; i += kPlanThreads) args.claims[i] = 0;
  }
  if (thread == 0) {
    *args.n_items = n_items;
    *args.next = 0;
    *args.sets_together = choose_together(args, shared.tiles, shared.longest);
  }
  __syncthreads();
  if (!may_be_cut) return;
  order_bins(args, n_items, bins);
  __syncthreads();
  if (units.n == 1) {
    if (thread == 0) split_last(args, n_items);
    return;
  }
  const Cuts cuts = choose_cuts(args, n_items, shared);
  if (cuts.n_runs > 0) cut_items(args, n_items, cuts, shared);
}

}  // namespace kvant::cuda
