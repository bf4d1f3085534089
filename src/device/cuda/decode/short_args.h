// What the kernels for short sequences share with the code that launches them.
#pragma once

#include "device/cuda/seal/encode_args.h"

namespace kvant::cuda {

inline constexpr int kShortWarps = 8;
inline constexpr int kMaxShortCtas = 8;  // of a cluster, which shares a sequence and KV head
// Of a sequence's tail tokens, with one CTA for each KV head, and for each of several: with more of them the
// general kernel is faster (on an H100, of 8 heads of 128 channels, by decode_bench).
inline constexpr int kMaxShortTokens = 512;
inline constexpr int kMaxSharedTokens = 256;
// Of sealed pages, for each CTA.
inline constexpr int kMaxShortPages = 4;
// Slots of a ring of sealed pages: two or four.
inline constexpr int kShortStages = 4;

// In the order in which the kernel needs them: arguments come from memory, a few at a time.
struct ShortArgs {
  const std::int32_t* tail_tokens;
  PageSource tail;
  int table_pages;                   // that its tables have for each sequence, at least
  const std::int32_t* first_tokens;  // masked out, of a sequence's first page; or null
  int group, n_kv_heads;
  NumberType q_type, rows_type;
  AppendedRows queries;
  AppendedRows sides[2];  // a new token of each sequence, the last one of its tail; rows null: there are none
  float softmax_scale_log2;
  float softcap_log2;  // greater than 0: scores are capped, in units of log 2
  const float* sink_logits;
  float* lse;
  int out_hadamard;
  NumberType out_type;
  int out_channels;  // that rows have
  const float* out_factors;
  void* out;
  std::int64_t out_seq_stride, out_head_stride;

  static constexpr int sas = 0;
};

// Where some of a sequence is sealed: the general kernel's arguments, as pairs of formats read them, of which
// q and the schedule are not used, and of the shared memory all but the merge buffer. Outputs, `lse` and sink
// logits begin with a group's first query head, whichever the launch works on.
struct ShortSealedArgs : DecodeArgs {
  int first_query;     // of each group
  int sealed_entries;  // that tables of sealed pages have for each sequence, at least
  int tail_entries;    // likewise
  NumberType rows_type;
  AppendedRows queries;
  AppendedRows sides[2];

  static constexpr std::nullptr_t correction_numerator = nullptr;  // no code for it
};

}  // namespace kvant::cuda
