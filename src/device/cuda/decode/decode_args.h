// What the decode kernels share with the code that launches them.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "device/cuda/page/any_page.h"
#include "device/cuda/page/number_type.h"
#include "device/cuda/page/page_layout.h"

namespace kvant::cuda {

// Three warps on each of a multiprocessor's schedulers, the copying warp among them. (Nine to twelve warps
// may use the same number of registers each.)
inline constexpr int kMaxConsumerWarps = 11;
// Those of heads of 256 channels: pairs of warps share pages, and five pages of either side fit into a CTA's
// shared memory twice. Of heads of 512: four warps share pages, each with a block of their channels.
KVANT_HOST_DEVICE constexpr int max_consumer_warps(int head_dim) {
  return head_dim == 512 ? 8 : head_dim == 256 ? 10 : kMaxConsumerWarps;
}
// Warps that share pages by channels, each with a block of them.
KVANT_HOST_DEVICE constexpr int channel_warps(int head_dim) {
  return code_blocks(head_dim);
}
inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kMaxStages = 8;
inline constexpr int kFewUnits = 24;    // of a CTA: what precedes and follows them is much of its time
inline constexpr int kPaddedGroup = 8;  // query heads of a KV head in a launch: the columns of a product
inline constexpr int kMergedHeads = 4;  // query heads that are merged at a time
inline constexpr int kSlice =
    2 * kLanes;  // channels of a query head that a warp merges and combines at a time
// Slices of a column that results have places for.
KVANT_HOST_DEVICE constexpr int slices_of_column(int head_dim) {
  return (head_dim > 256 ? 512 : 256) / kSlice;
}

inline constexpr int kMaxKvHeads = 64;
inline constexpr int kMaxHeadGroups = 8;
inline constexpr int kMaxGroup = 16;  // query heads of a KV head
// How many launches the query heads of a KV head take: each reads the same pages.
KVANT_HOST_DEVICE constexpr int query_passes(int group) {
  return (group + kPaddedGroup - 1) / kPaddedGroup;
}
// Several queries of a sequence (query_columns.cuh): how many there may be, how many columns a launch has for
// them and their heads, up to 8 for each of the warps that share pages, and how many launches they take.
inline constexpr int kMaxQueries = 8;
inline constexpr int kMaxColumns = 32;
KVANT_HOST_DEVICE constexpr int queries_of_launch(int queries, int group) {
  const int most = kMaxColumns / (group < kPaddedGroup ? group : kPaddedGroup);
  const int launches = (queries + most - 1) / most;
  return (queries + launches - 1) / launches;
}
inline constexpr int kMaxLaunches = kMaxHeadGroups * query_passes(kMaxGroup) *
                                    (kMaxQueries / queries_of_launch(kMaxQueries, kMaxGroup));  // of a layer

// When a kernel takes SAS for the exponential (sas.cuh). On request: a branch that all lanes take alike, and
// more code: `prog2` took 2 to 4 % longer with it.
enum class SasUse : std::uint8_t { never, on_request, always };

// KV heads whose pages have the same formats.
struct HeadList {
  int n;
  std::uint8_t at[kMaxKvHeads];
};

// Pages of one layer: kvant_pages with the layer worked in.
struct PageSource {
  const std::int32_t* table;
  std::int64_t seq_stride, head_stride, side_stride;
  const unsigned char* pool;
  std::int64_t page_stride, head_offset, side_offset;

  // The page that the table calls `id`.
  KVANT_HOST_DEVICE const unsigned char* at(std::int64_t id, int head, int side) const {
    return pool + id * page_stride + head * head_offset + side * side_offset;
  }
  KVANT_HOST_DEVICE std::int32_t id_of(std::int64_t seq, int head, int side, int page) const {
    return table[seq * seq_stride + head * head_stride + side * side_stride + page];
  }
  // Page `page` of a sequence.
  KVANT_HOST_DEVICE const unsigned char* find(std::int64_t seq, int head, int side, int page) const {
    return at(id_of(seq, head, side, page), head, side);
  }
};

// Sealed pages: those of each head and side may take a room of their own.
struct SealedSource {
  static constexpr int kOffsetUnit = 16;  // bytes
  PageSource pages;
  std::uint32_t offsets[kMaxKvHeads][2];  // kvant_decode_layer::sealed_offsets, in such units

  KVANT_HOST_DEVICE std::int64_t offset_of(int head, int side) const {  // bytes
    return std::int64_t{offsets[head][side]} * kOffsetUnit;
  }
  KVANT_HOST_DEVICE const unsigned char* at(std::int64_t id, int head, int side) const {
    return pages.at(id, head, side) + offset_of(head, side);
  }
  KVANT_HOST_DEVICE const unsigned char* find(std::int64_t seq, int head, int side, int page) const {
    return at(pages.id_of(seq, head, side, page), head, side);
  }
};

// A CTA's share of a step's work, and the sequence and head that it begins in (work_range.cuh).
struct alignas(16) WorkStart {
  std::int32_t begin, end;             // units
  std::int32_t head_units;             // of all sequences of one head
  std::int32_t head, seq;              // head: its place in DecodeArgs::heads
  std::int32_t seq_begin, seq_end;     // its units among the head's
  std::int32_t n_sealed, n_protected;  // its sealed and protected pages
  // The first CTA that shares the sequence and head that it begins in; the last one, of those it ends in.
  std::int32_t first_cta, last_cta;
};

// The division of a step's work. A sequence's units are its sealed, protected and tail pages, in this order;
// units of all sequences of the KV heads of a launch (head-major) are dealt out to the CTAs in contiguous
// ranges (schedule.cuh).
struct Schedule {
  std::int32_t* first_unit;       // [n_seqs + 1]: of each sequence among one head's units
  std::int32_t* protected_pages;  // [n_seqs]: the maximum over heads
  WorkStart* starts;  // [n_kv_heads][2][n_ctas]: of launches on 1, 2, ... heads, equal and graded;
                      // of a launch: [n_ctas], its own
  // Of each launch, those of the first first:
  std::int32_t* arrivals;  // [n_ctas][n_slices]: of the sequence and head that this CTA begins and others
                           // share, how many have left a slice of the result; 0 between launches
  // With one query of a sequence kUnwrittenBits each between launches (partial_results.cuh).
  float* partial_out;   // [2 n_ctas][kPaddedGroup][d]
  float* partial_sums;  // [2 n_ctas][n_slices][2]: maximum and sum
};

struct DecodeArgs {
  int n_seqs, n_kv_heads, group;
  int n_queries;             // of each group, that this launch works on: from those at q, out and lse on
  HeadList heads;            // that it works on
  int follows;               // not 0: a launch of the same call on other heads precedes this one
  float softmax_scale_log2;  // scores in units of log 2
  int sas;                   // not 0: the exponential is SAS (sas.cuh)
  float softcap_log2;        // greater than 0: scores are capped, in units of log 2; by the generic kernel
  const std::int32_t *sealed_pages, *tail_tokens, *protected_tokens;
  std::int64_t protected_seq_stride, protected_head_stride;
  const std::int32_t* first_tokens;  // of a sequence's first page, masked out; or null
  PageSource tail, protected_pages;
  int sink;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  const void *key_codebooks, *value_codebooks;
  std::int64_t key_codebook_stride, value_codebook_stride;
  const void* q;
  NumberType q_type;
  int q_channels;  // that rows have, a multiple of 8; the others are zeros
  std::int64_t q_seq_stride, q_head_stride;
  void* out;
  NumberType out_type;
  int out_channels;          // that rows have; the others are not stored
  int out_hadamard;          // not 0: outputs are rotated
  const float* out_factors;  // then times these, [n_kv_heads][head_dim]; or null
  int settled;
  int reproducible;
  float* lse;
  const float* sink_logits;         // of each query head; or null
  float skip_below;                 // of kernels that skip values: sums of weights that don't matter
  unsigned long long* skip_counts;  // [2]: pages seen and skipped; or null
  // KVLinC's correction, of each sequence and query head: phi(q) S and phi(q) z. Or null.
  const float *correction_numerator, *correction_denominator;
  int correction_absolute;
  std::int64_t out_seq_stride, out_head_stride;
  Schedule schedule;
  // Of codes: bits of either side where a kernel serves several widths, and the levels that they stand for.
  int key_bits, value_bits;
  float key_unit, value_unit;  // of the levels
  float key_levels[kMaxLevels], value_levels[kMaxLevels];
  // Shared memory: table at 0, then the merge buffer, the barriers and the rings of the consumer warps.
  int merge_at, barriers_at, ring_at;
  int consumer_warps;
  int slot_bytes, stages;
  int key_bytes, value_bytes;    // of a sealed page
  AnyPage key_page, value_page;  // of the generic kernel
  SealedSource sealed;           // last: what is read of it begins with one head's
};

// The queries of sequences that have several.
struct QueryArgs {
  const std::int32_t* begins;  // [n_seqs + 1]: rows of q and out; or null: all have as many as there may be
  int of_sequence;             // at most
  int first, n;                // of each sequence, those that this launch works on
  int n_columns;               // that partial results have places for
  int sharers_log2;            // warps that share a ring of pages, each with 8 columns
  int per_head;                // 2^16 / DecodeArgs::n_queries, rounded up
};
struct SeveralArgs : DecodeArgs {
  QueryArgs queries;
};

}  // namespace kvant::cuda
