// Defines the arguments and limits of the kernels for short sequences, for kernels and the launching host
// code. The limits determine which steps are short enough.
#pragma once

#include "device/cuda/common/arguments.h"
#include "device/cuda/common/gpu.h"
#include "device/cuda/decode/decode_args.h"

namespace kvant::cuda {

inline constexpr int kShortWarps = 8;
// A cluster of at most this many CTAs shares a sequence and KV head.
inline constexpr int kMaxShortCtas = kMaxClusterCtas;
// A sequence has at most kMaxShortTokens tail tokens if one CTA serves each KV head, and kMaxSharedTokens per
// CTA if several CTAs serve each KV head. With more tokens the general kernel is faster (on an H100, with 8
// heads of 128 channels, by decode_bench).
inline constexpr int kMaxShortTokens = 512;
inline constexpr int kMaxSharedTokens = 256;
// A CTA of a cluster has at most this many sealed pages. The general kernel shares pages among more SMs, but
// starts and combines results more slowly. The larger limit is for the shapes and formats for which it was
// measured to be faster (serves_more_pages()).
inline constexpr int kMaxShortPages = 4;
inline constexpr int kMaxMoreShortPages = 8;
// If a step has more pairs of a sequence and a KV head than the GPU has SMs, each pair has one CTA, with at
// most kMaxShortPages. The CTAs run in at most this many waves. The general kernel would start and end such
// short sequences more slowly.
inline constexpr int kMaxShortWaves = 4;
// A ring of sealed pages has this many slots. Two or four slots are possible.
inline constexpr int kShortStages = 4;

// The members have the order in which the kernel needs them, because the kernel loads few arguments from
// memory at a time.
struct ShortArgs {
  const std::int32_t* tail_tokens;
  PageSource tail;
  int table_pages;  // least number of pages in a sequence's tables
  // Holds the number of hidden tokens of each sequence's first page, [n_seqs]. Null means that no tokens are
  // hidden.
  const std::int32_t* first_tokens;
  int group, n_kv_heads;
  NumberType q_type, rows_type;
  AppendedRows queries;
  // A new token of each sequence is the last token of its tail. Null rows mean that there are no new tokens.
  AppendedRows sides[2];
  float softmax_scale_log2;
  // A positive value limits scores. The value is in units of log 2.
  float softcap_log2;
  const float* sink_logits;
  float* lse;
  int out_hadamard;
  NumberType out_type;
  int out_channels;  // channels of an output row
  const float* out_factors;
  void* out;
  std::int64_t out_seq_stride, out_head_stride;

  static constexpr int sas = 0;
};

// Holds the arguments if some pages of a sequence are sealed. The structure begins with the general kernel's
// arguments, because pairs of formats read them. The kernel ignores q, the schedule and the merge buffer's
// offset. out, lse and sink_logits point to the first query head of a KV head, whichever query heads the
// launch serves.
struct ShortSealedArgs : DecodeArgs {
  // The launch serves query heads [first_query, end_query) of each KV head. A cluster has n_queries of the
  // query heads. If more remain, a second cluster has the rest.
  int first_query, end_query;
  // The value is 2^16 / CTAs of a cluster, rounded up. Multiplying by the value and shifting replaces a
  // division by the number of CTAs.
  int per_cta;
  int sealed_entries;  // least number of entries in a sequence's table of sealed pages
  int tail_entries;    // least number of entries in a sequence's table of tail pages
  NumberType rows_type;
  AppendedRows queries;
  AppendedRows sides[2];

  // A null pointer of this type makes the compiler leave out the code for a correction.
  static constexpr std::nullptr_t correction_numerator = nullptr;
};

}  // namespace kvant::cuda
