// What the decode kernels share with the host code that launches them.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "device/cuda/common/arguments.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/page/any_page.h"
#include "device/cuda/page/page_layout.h"

namespace kvant::cuda {

// Each scheduler of an SM runs three warps, one of them the copying warp. (Nine to twelve warps get the same
// number of registers each.)
inline constexpr int kMaxConsumerWarps = 11;
// The limit depends on the head size. With heads of 256, pairs of warps share pages, and a CTA's shared
// memory holds five pages of either side twice. With heads of 512, four warps share pages, each with a block
// of the channels.
KVANT_HOST_DEVICE constexpr int max_consumer_warps(int head_dim) {
  return head_dim == 512 ? 8 : head_dim == 256 ? 10 : kMaxConsumerWarps;
}
// The number of warps that share pages by channels; each has a block of the channels.
KVANT_HOST_DEVICE constexpr int channel_warps(int head_dim) {
  return code_blocks(head_dim);
}
inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kMaxStages = 8;
inline constexpr int kFewUnits = 24;    // units of a CTA below which start and end dominate its time
inline constexpr int kMergedHeads = 4;  // query heads that are merged together
// The number of channels of a query head that a warp merges and combines together.
inline constexpr int kSlice = 2 * kLanes;
// The number of slices per column for which results have space.
KVANT_HOST_DEVICE constexpr int slices_of_column(int head_dim) {
  return (head_dim > 256 ? 512 : 256) / kSlice;
}

// The number of launches for the query heads of a KV head; each launch reads the same pages.
KVANT_HOST_DEVICE constexpr int query_passes(int group) {
  return (group + kPaddedGroup - 1) / kPaddedGroup;
}
// Limits for several queries per sequence (query_columns.cuh): the number of queries, and the columns of a
// launch for queries times heads. There are up to 8 columns for each warp that shares pages.
// queries_of_launch() spreads the queries evenly over launches.
inline constexpr int kMaxColumns = 32;
KVANT_HOST_DEVICE constexpr int queries_of_launch(int queries, int group) {
  const int most = kMaxColumns / (group < kPaddedGroup ? group : kPaddedGroup);
  const int launches = (queries + most - 1) / most;
  return (queries + launches - 1) / launches;
}
inline constexpr int kMaxLaunches = kMaxHeadGroups * query_passes(kMaxGroup) *
                                    (kMaxQueries / queries_of_launch(kMaxQueries, kMaxGroup));  // per layer

// Whether a kernel uses SAS for the exponential (sas.cuh). on_request costs a branch that all lanes take
// alike, and code size: `prog2` took 2 to 4 % longer with it.
enum class SasUse : std::uint8_t { never, on_request, always };

// A CTA's share of a step's work, and the sequence and head where it begins (work_range.cuh).
struct alignas(16) WorkStart {
  std::int32_t begin, end;             // units
  std::int32_t head_units;             // units of one head, over all sequences
  std::int32_t head, seq;              // head is an index into DecodeArgs::heads
  std::int32_t seq_begin, seq_end;     // the sequence's units among those of the head
  std::int32_t n_sealed, n_protected;  // sealed and protected pages of the sequence
  // The first CTA that shares the sequence and head where this CTA begins, and the last CTA that shares those
  // where it ends.
  std::int32_t first_cta, last_cta;
};

// Divides a step's work. The units of a sequence are its sealed, protected and tail pages, in this order. A
// launch's KV heads have the units of all sequences (head-major), which CTAs get in contiguous ranges
// (schedule.cuh).
struct Schedule {
  std::int32_t* first_unit;       // [n_seqs + 1]: index of each sequence's first unit among those of one head
  std::int32_t* protected_pages;  // [n_seqs]: the maximum over heads
  // [n_kv_heads][2][n_ctas]: for launches on 1, 2, ... heads, with equal and with graded ranges. A launch
  // sees its own [n_ctas].
  WorkStart* starts;
  // The arrays below belong to one launch; these pointers are those of the first launch.
  // [n_ctas][n_slices]: how many CTAs have left a slice of the result, for the sequence and head where this
  // CTA begins and that others share. It is 0 between launches.
  std::int32_t* arrivals;
  // With one query per sequence these hold kUnwrittenBits between launches (partial_results.cuh).
  float* partial_out;   // [2 n_ctas][kPaddedGroup][d]
  float* partial_sums;  // [2 n_ctas][n_slices][2]: maximum and sum
};

struct DecodeArgs {
  int n_seqs, n_kv_heads, group;
  int n_queries;             // queries per group in this launch, starting at the addresses q, out and lse
  HeadList heads;            // heads of this launch
  int follows;               // nonzero: an earlier launch of the same call serves other heads
  float softmax_scale_log2;  // gives scores in units of log 2
  int sas;                   // nonzero: the exponential is SAS (sas.cuh)
  float softcap_log2;        // > 0: the generic kernel caps scores, in units of log 2
  const std::int32_t *sealed_pages, *tail_tokens, *protected_tokens;
  std::int64_t protected_seq_stride, protected_head_stride;
  const std::int32_t* first_tokens;  // hidden tokens of each sequence's first page; or null
  PageSource tail, protected_pages;
  int sink;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  const void *key_codebooks, *value_codebooks;
  std::int64_t key_codebook_stride, value_codebook_stride;
  const void* q;
  NumberType q_type;
  int q_channels;  // channels that rows have, a multiple of 8; the others are zeros
  std::int64_t q_seq_stride, q_head_stride;
  void* out;
  NumberType out_type;
  int out_channels;          // channels that rows have; the others are not stored
  int out_hadamard;          // nonzero: outputs are rotated
  const float* out_factors;  // factors after that, [n_kv_heads][head_dim]; or null
  int settled;
  int reproducible;
  float* lse;
  const float* sink_logits;         // one per query head; or null
  float skip_below;                 // for kernels that skip values: sums of weights below this don't matter
  unsigned long long* skip_counts;  // [2]: pages seen and skipped; or null
  // KVLinC's correction for each sequence and query head: phi(q) S and phi(q) z; or null.
  const float *correction_numerator, *correction_denominator;
  int correction_absolute;
  std::int64_t out_seq_stride, out_head_stride;
  Schedule schedule;
  // Describes codes: the bits of each side where a kernel serves several widths, and the levels of the codes.
  int key_bits, value_bits;
  float key_unit, value_unit;  // for the levels
  float key_levels[kMaxLevels], value_levels[kMaxLevels];
  // The layout of shared memory: the table at 0, then the merge buffer, the barriers and the rings of the
  // consumer warps.
  int merge_at, barriers_at, ring_at;
  int consumer_warps;
  int slot_bytes, stages;
  int key_bytes, value_bytes;    // of a quantized page
  AnyPage key_page, value_page;  // for the generic kernel
  SealedSource sealed;           // last, because kernels read only the entries of their heads
};

// Describes the queries of sequences that have several.
struct QueryArgs {
  // [n_seqs + 1]: first rows of q and out; null: all sequences have the maximum number of queries
  const std::int32_t* begins;
  int of_sequence;   // maximum per sequence
  int first, n;      // the range of each sequence's queries in this launch
  int n_columns;     // columns for which partial results have space
  int sharers_log2;  // log2 of the warps that share a ring of pages, each with 8 columns
  int per_head;      // 2^16 / DecodeArgs::n_queries, rounded up, for division
};
struct SeveralArgs : DecodeArgs {
  QueryArgs queries;
};

}  // namespace kvant::cuda
