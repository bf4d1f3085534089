// The arguments of the kernels of prefill attention.
#pragma once

#include <cstdint>

#include "device/cuda/common/arguments.h"

namespace kvant::cuda {

// How far a tile's exact half-precision weights may exceed a row's reference, in log2; their limit is 2^16.
inline constexpr float kHalfSlack = 8;

// The maximum number of cuts in blocks that several CTAs share, over all heads: more than a GPU has SMs.
inline constexpr int kMostHalves = 192;
// Limits if blocks have rows of several heads: the parts of one block, and the pieces of all items that are
// cut.
inline constexpr int kMostParts = 18, kMostPieces = 224;
// The numbers through which such a block's CTAs communicate (join_parts.cuh): two counts, and where each
// part's sums lie.
inline constexpr int kClaims = 2 + kMostParts;

// How the query rows of a sequence form blocks of n units of `rows` rows each. If a block has several units,
// they belong to all query heads of a KV head: first the first unit of each head, then the second. Blocks are
// then full, and their rows see about the same tokens.
struct BlockUnits {
  int rows, n;
};

// A block of query tokens of one sequence. All heads share it, or KV heads if it has units of several. Tokens
// and pages are counted from the start of the sequence.
struct PromptItem {
  std::int32_t seq;
  std::int32_t first_row;            // among the query tokens of all sequences
  std::int32_t n_rows;               // per head
  std::int32_t limit;                // the first row sees tokens before this one, each later row one more
  std::int32_t tokens;               // of the sequence
  std::int32_t n_sealed;             // its sealed pages
  std::int32_t first_token;          // of the rows
  std::int32_t page, end_page;       // sealed pages that the block sees
  std::int32_t tile, end_tile;       // tiles of rows that it sees; at least one tile or page
  std::int32_t split;                // number of a block that several CTAs share; otherwise negative
  std::int32_t page_slot, row_slot;  // of the sequence's first sealed page and tile of rows
  // If blocks have rows of several heads: the head of the first unit in the KV head, the part of a block that
  // several CTAs share, and the number of cuts in earlier such blocks.
  std::int32_t first_head, part, n_parts, first_cut;
};

struct PromptRowSums {
  float reference, mass;
};

struct PromptRows {
  const void* data;  // 16-bit numbers
  std::int64_t token_stride, head_stride;
};

struct PromptArgs {
  PromptRows q, k, v;
  NumberType q_type, out_type;   // half precision may use any type; otherwise bf16 or f16, like k and v
  int q_hadamard, out_hadamard;  // nonzero: queries and outputs are rotated
  // Nonzero: tiles' rows are rotated back instead, which gives the same attention in half precision. Rows are
  // then those of tail pages.
  int key_hadamard, value_hadamard;
  const float* sink_logits;  // [n_heads], or null
  void* out;
  std::int64_t out_token_stride, out_head_stride;
  float* lse;  // or null
  std::int64_t lse_token_stride, lse_head_stride;
  // For half precision only: how far scores may exceed a row's reference before it follows them, in log2. It
  // is kHalfSlack, or 0 if the reference must be the largest score.
  float slack_log2;
  // For rows that are corrected after the kernel, or null: their references, in log2, and the sums of their
  // weights relative to these.
  PromptRowSums* row_sums;       // [queries][n_heads]
  const std::int32_t* q_begins;  // [n_seqs + 1]
  const std::int32_t* k_begins;
  const std::int32_t* sealed_begins;     // [n_seqs + 1], or null: there are no sealed pages
  const std::int32_t* query_sealed;      // pages that each query sees; null: all
  const std::int32_t* first_row_tokens;  // null: rows follow the sealed pages
  int n_seqs, n_heads, n_kv_heads, group;
  int mixed;         // query heads whose rows a block may have, called a set: 1, or all of a KV head
  int n_sets;        // sets; each attends to all items
  int n_ctas;        // of the attention kernel
  int n_claims;      // numbers in `claims`
  float scale_log2;  // of scores, in units of log 2
  int causal;
  int window;            // tokens that a row sees, including itself; 0: all
  int page_slots;        // slots of sealed pages, which precede those of rows
  unsigned char* tiles;  // [slots][n_kv_heads]
  // [n_seqs][n_kv_heads][3][D]: centres of keys and values, and scales of values. Only integers use them;
  // null in half precision.
  float* channels;
  // [kMostHalves]: what a CTA leaves for another (join_halves.cuh, join_parts.cuh).
  float* halves;
  // [kMostHalves][groups][2]: how many CTAs have finished, then nonzero once a CTA's sums have arrived.
  // kClaims per block if blocks have rows of several heads.
  std::int32_t* claims;
  PromptItem* items;  // the longest first
  std::int32_t* n_items;
  std::int32_t* next;           // next work that no CTA has taken
  std::int32_t* sets_together;  // the number of sets that attend to all items before the next ones start
  // For capped scores c tanh(score / c): c in units of log 2, and log2 of e^(2 score / c) for a product of 1.
  // Otherwise 0.
  float softcap_log2, softcap_slope;
};

}  // namespace kvant::cuda
