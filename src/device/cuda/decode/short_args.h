// What the kernels for short sequences share with the host code that launches them.
#pragma once

#include "device/cuda/common/arguments.h"
#include "device/cuda/decode/decode_args.h"

namespace kvant::cuda {

inline constexpr int kShortWarps = 8;
inline constexpr int kMaxShortCtas = 8;  // of a cluster, which shares a sequence and KV head
// Limits on a sequence's tail tokens, with one CTA per KV head and with several. Above them the general
// kernel is faster (on an H100, with 8 heads of 128 channels, by decode_bench).
inline constexpr int kMaxShortTokens = 512;
inline constexpr int kMaxSharedTokens = 256;
// The limit on sealed pages per CTA.
inline constexpr int kMaxShortPages = 4;
// The slots of a ring of sealed pages: two or four.
inline constexpr int kShortStages = 4;

// Members are in the order in which the kernel needs them, because arguments come from memory, a few at a
// time.
struct ShortArgs {
  const std::int32_t* tail_tokens;
  PageSource tail;
  int table_pages;                   // the least number of pages in each sequence's tables
  const std::int32_t* first_tokens;  // hidden tokens of each sequence's first page; or null
  int group, n_kv_heads;
  NumberType q_type, rows_type;
  AppendedRows queries;
  AppendedRows sides[2];  // a new token of each sequence, the last of its tail; null rows: there are none
  float softmax_scale_log2;
  float softcap_log2;  // > 0: scores are capped, in units of log 2
  const float* sink_logits;
  float* lse;
  int out_hadamard;
  NumberType out_type;
  int out_channels;  // channels that rows have
  const float* out_factors;
  void* out;
  std::int64_t out_seq_stride, out_head_stride;

  static constexpr int sas = 0;
};

// Arguments if some of a sequence is sealed: the general kernel's arguments, as pairs of formats read them.
// q, the schedule, and the shared memory except for the merge buffer are not used. Outputs, `lse` and sink
// logits begin with a group's first query head, whichever heads the launch serves.
struct ShortSealedArgs : DecodeArgs {
  int first_query;     // of each group
  int sealed_entries;  // the least number of entries in each sequence's table of sealed pages
  int tail_entries;    // the same for tail pages
  NumberType rows_type;
  AppendedRows queries;
  AppendedRows sides[2];

  static constexpr std::nullptr_t correction_numerator = nullptr;  // compiles the code for it away
};

}  // namespace kvant::cuda
