// Defines the arguments of the decode attention kernels, and the limits on which kernels and the launching
// host code must agree. The host fills in a DecodeArgs for each launch, or a SeveralArgs if sequences have
// several queries. Shapes in brackets name the slowest dimension first.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "device/cuda/common/arguments.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/page/any_page.h"
#include "device/cuda/page/page_layout.h"
#include "format/trellis_code.h"

namespace kvant::cuda {

// With the copying warp a CTA has at most twelve warps, three for each scheduler of an SM. A CTA of nine
// warps would give each warp no more registers than a CTA of twelve.
inline constexpr int kMaxConsumerWarps = 11;
// Returns the largest number of consumer warps of a CTA. With heads of 256, two warps share a ring, and
// shared memory holds five rings of two slots. With heads of 512, four warps share a ring, each with a block
// of the channels, and shared memory holds two rings.
KVANT_HOST_DEVICE constexpr int max_consumer_warps(int head_dim) {
  return head_dim == 512 ? 8 : head_dim == 256 ? 10 : kMaxConsumerWarps;
}
// Returns the number of warps that share a ring by channels. Each warp has one block of the channels.
KVANT_HOST_DEVICE constexpr int channel_warps(int head_dim) {
  return code_blocks(head_dim);
}
inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kMaxStages = 8;
// A CTA with at most this many units spends most of its time on its start and end.
inline constexpr int kFewUnits = 24;
// leave_segment() merges the results of this many query heads at a time.
inline constexpr int kMergedHeads = 4;
// A warp merges and combines results in slices of this many channels of a query head, two channels a lane.
inline constexpr int kSlice = 2 * kLanes;
// Returns the number of slices of a column for which partial results have space.
KVANT_HOST_DEVICE constexpr int slices_of_column(int head_dim) {
  return (head_dim > 256 ? 512 : 256) / kSlice;
}

// The last CTA of a block of this many combines the results that the block's CTAs have left
// (partial_results.cuh). A warp loads the results of a block at once. One lane has the sum of one result, so
// 32 is the limit. 17 CTAs share each of 8 KV heads on 132 SMs.
inline constexpr int kPartsTogether = 17;
KVANT_HOST_DEVICE constexpr int cta_blocks(int n_ctas) {
  return (n_ctas + kPartsTogether - 1) / kPartsTogether;
}

// part_places() returns the number of places for partial results, and arrival_rows() the number of rows of
// counters (Schedule).
KVANT_HOST_DEVICE constexpr int part_places(int n_ctas) {
  return n_ctas + cta_blocks(n_ctas);
}
KVANT_HOST_DEVICE constexpr int arrival_rows(int n_ctas) {
  return n_ctas + 2 * cta_blocks(n_ctas);
}

// Returns how many launches serve the query heads of one KV head. All launches for a KV head read the same
// pages.
KVANT_HOST_DEVICE constexpr int query_passes(int group) {
  return (group + kPaddedGroup - 1) / kPaddedGroup;
}
// A launch for several queries per sequence has a column for each pair of a query and a query head
// (query_columns.cuh). Up to four warps share pages, each with eight columns. queries_of_launch() spreads the
// queries evenly over as few launches as possible.
inline constexpr int kMaxColumns = 32;
KVANT_HOST_DEVICE constexpr int queries_of_launch(int queries, int group) {
  const int most = kMaxColumns / (group < kPaddedGroup ? group : kPaddedGroup);
  const int launches = (queries + most - 1) / most;
  return (queries + launches - 1) / launches;
}
// One layer takes at most this many launches.
inline constexpr int kMaxLaunches =
    kMaxHeadGroups * query_passes(kMaxGroup) * (kMaxQueries / queries_of_launch(kMaxQueries, kMaxGroup));

// Says whether a kernel computes exponentials by SAS (sas.cuh). With on_request, kernels decide by a branch
// that all lanes take alike. The branch makes the code larger, and kernels for `prog2` took 2 to 4 % longer
// with it.
enum class SasUse : std::uint8_t { never, on_request, always };

// Says how a launch divides its work among CTAs. `equal` gives each SM a CTA, and CTAs have equal ranges.
// `graded` also gives each SM a CTA, but CTAs that begin earlier have longer ranges. `side_by_side` leaves
// SMs to the other launches of the call, which run at the same time.
enum class Division : std::uint8_t { equal, graded, side_by_side };
inline constexpr int kDivisions = 3;
// Returns the number of CTAs of a launch on `n_heads` of the KV heads that runs side by side with the
// launches on the other heads. Together, the launches for the same query heads and queries have at most as
// many CTAs as the GPU has SMs. SMs are not divided by the bytes of pages, because the time of trellis codes
// does not follow their bytes.
KVANT_HOST_DEVICE constexpr int side_by_side_ctas(int n_sms, int n_heads, int n_kv_heads) {
  return n_sms * n_heads / n_kv_heads;
}

// Describes one CTA's share of a launch's work, and the sequence and KV head in which the share begins
// (work_range.cuh).
struct alignas(16) WorkStart {
  std::int32_t begin, end;             // units [begin, end) of the launch
  std::int32_t head_units;             // units of one head, over all sequences
  std::int32_t head, seq;              // `head` is an index into DecodeArgs::heads.
  std::int32_t seq_begin, seq_end;     // units [seq_begin, seq_end) of each head
  std::int32_t n_sealed, n_protected;  // pages of the sequence
  // Several CTAs may share a sequence and head. This CTA begins in a sequence and head whose first CTA is
  // first_cta, and ends in a sequence and head whose last CTA is last_cta.
  std::int32_t first_cta, last_cta;
};

// Divides a step's work among CTAs. The units of a sequence are its sealed, protected and tail pages, in this
// order. A launch numbers the units of all its KV heads, in the order of heads, and gives each CTA a
// contiguous range of the numbers (schedule.cuh).
struct Schedule {
  // Holds the first unit of each sequence, counted from the first unit of the sequence's head, [n_seqs + 1].
  std::int32_t* first_unit;
  std::int32_t* protected_pages;  // [n_seqs], the largest number of pages over the heads
  // Holds each CTA's share for every kind of launch, [n_kv_heads][kDivisions][n_ctas]. The first index is the
  // number of heads that a launch serves, less one. The second index is the Division. A decode kernel's
  // pointer leads to the n_ctas shares of its launch.
  WorkStart* starts;
  // Each launch has its own part of the arrays `arrivals`, partial_out and partial_sums. In the schedule
  // kernel the pointers lead to the first launch's parts.
  //
  // `arrivals` counts the parts of a slice that have been left, [arrival_rows(n_ctas)][n_slices], if several
  // CTAs share a sequence and head. The counters of the first sharing CTA are used. After the rows of the
  // CTAs come two rows for each block of CTAs. All counters are 0 between launches.
  std::int32_t* arrivals;
  // Parts lie at the places of CTAs and, after them, of blocks of CTAs. If sequences have one query each,
  // both arrays hold kUnwrittenBits between launches (partial_results.cuh).
  float* partial_out;   // [2 part_places(n_ctas)][n_columns][d]
  float* partial_sums;  // [2 part_places(n_ctas)][n_slices][2]: maximum and sum
};

struct DecodeArgs {
  int n_seqs, n_kv_heads, group;
  // The launch serves this many query heads of each KV head. q, out and lse point to the first of these
  // heads.
  int n_queries;
  // The launch serves the KV heads in this list.
  HeadList heads;
  int follows;  // Nonzero means that an earlier launch of the call serves other heads.
  // The product of a query and a key times this factor is a score in units of log 2.
  float softmax_scale_log2;
  int sas;  // Nonzero selects SAS for exponentials (sas.cuh).
  // A positive value makes the generic kernel cap scores. The value is in units of log 2.
  float softcap_log2;
  const std::int32_t *sealed_pages, *tail_tokens, *protected_tokens;
  std::int64_t protected_seq_stride, protected_head_stride;
  // Holds the number of tokens that are hidden from each sequence's last query, counted from the start of the
  // first page, [n_seqs]. Null means that no tokens are hidden.
  const std::int32_t* first_tokens;
  PageSource tail, protected_pages;
  int sink;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  const void *key_codebooks, *value_codebooks;
  std::int64_t key_codebook_stride, value_codebook_stride;
  const void* q;
  NumberType q_type;
  // Rows of q have this many channels, a multiple of 8. Kernels take zeros for the missing channels of a
  // page.
  int q_channels;
  std::int64_t q_seq_stride, q_head_stride;
  void* out;
  NumberType out_type;
  // Rows of out have this many channels. Kernels do not store the other channels of a page.
  int out_channels;
  int out_hadamard;          // Nonzero makes kernels apply the Hadamard rotation to outputs.
  const float* out_factors;  // [n_kv_heads][head_dim]: factors for rotated outputs; or null
  int settled;
  int reproducible;
  float* lse;
  const float* sink_logits;  // [n_kv_heads * group], or null
  // Kernels that skip values skip a page's values if no lane's sum of the page's weights exceeds this
  // threshold (pairs/skipping.cuh).
  float skip_below;
  unsigned long long* skip_counts;  // [2], pages seen and pages skipped; may be null
  // The pointers lead to KVLinC's correction: phi(q) S, [n_seqs][query head][head_dim], and phi(q) z,
  // [n_seqs][query head]. Both pointers are null without a correction.
  const float *correction_numerator, *correction_denominator;
  int correction_absolute;
  std::int64_t out_seq_stride, out_head_stride;
  Schedule schedule;
  // Kernels that serve several code widths, but one width in a launch, read the bits of each side's codes
  // from these members.
  int key_bits, value_bits;
  // A code stands for its level times the side's unit.
  float key_unit, value_unit;
  float key_levels[kMaxLevels], value_levels[kMaxLevels];
  // Shared memory holds the tables at 0, then the merge buffer, the barriers and the rings of the consumer
  // warps. The offsets are in bytes.
  int merge_at, barriers_at, ring_at;
  int consumer_warps;
  int slot_bytes, stages;
  // A sealed page has page_bytes() bytes. If all heads of the launch have pages of equal size, bytes_of_bit
  // is 0.
  int key_bytes, value_bytes, bytes_of_bit;
  // Some trellis kernels serve heads of unlike code widths in one launch. These kernels read the bits of a
  // head's codes by bits_of(), and the unit of the levels from here, [bits].
  float trellis_units[kMaxTrellisBits + 1];
  std::uint8_t bits_of_heads[kMaxKvHeads];  // bits of the keys, plus 16 times the bits of the values
  // Only the generic kernel reads these two descriptions of pages.
  AnyPage key_page, value_page;
  SealedSource sealed;  // this long member comes last, because kernels read only the entries of their heads

  // `head` counts among all KV heads. `side` is 0 for keys and 1 for values.
  KVANT_HOST_DEVICE int bits_of(int head, int side) const { return bits_of_heads[head] >> (4 * side) & 15; }
  KVANT_HOST_DEVICE int page_bytes(int head, int side) const {
    return (side == 0 ? key_bytes : value_bytes) + bytes_of_bit * bits_of(head, side);
  }
};

// Says which queries a launch serves if sequences have several.
struct QueryArgs {
  // Holds the first row of each sequence in q and out, [n_seqs + 1]. Null means that every sequence has
  // `of_sequence` queries.
  const std::int32_t* begins;
  int of_sequence;  // largest number of queries of a sequence
  int first, n;     // queries [first, first + n) of each sequence
  int n_columns;    // columns for which partial results have space
  // Each of 2^sharers_log2 warps that share a ring has 8 columns.
  int sharers_log2;
  // Holds 2^16 / DecodeArgs::n_queries, rounded up. A multiplication by per_head and a shift replace a
  // division by n_queries.
  int per_head;
};
struct SeveralArgs : DecodeArgs {
  QueryArgs queries;
};

}  // namespace kvant::cuda
