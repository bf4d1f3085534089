// What the kernels of prompt attention are told.
#pragma once

#include <cstdint>

#include "device/cuda/page/number_type.h"

namespace kvant::cuda {

// How far a tile's exact weights in half precision may be above a row's reference, in log2: they reach 2^16.
inline constexpr float kHalfSlack = 8;

// Cuts of blocks that several CTAs share, of all heads together at most: more than a GPU's multiprocessors.
inline constexpr int kMostHalves = 192;
// Where blocks have rows of several heads: parts of one, and of all items that are cut.
inline constexpr int kMostParts = 18, kMostPieces = 224;
// What such a block's CTAs tell each other (join_parts.cuh): two counts, and where each part's sums lie.
inline constexpr int kClaims = 2 + kMostParts;

// How the query rows of a sequence make blocks: so many units of so many rows each. Where a block has several
// units they are those of all query heads of a KV head, first the first unit of each head, then the second:
// so blocks are full, and their rows see about the same tokens.
struct BlockUnits {
  int rows, n;
};

// A block of query tokens of one sequence; all heads, or KV heads where it has units of several, share it.
// Tokens and pages are counted from the sequence's first.
struct PromptItem {
  std::int32_t seq;
  std::int32_t first_row;            // among the query tokens of all sequences
  std::int32_t n_rows;               // of any of its heads
  std::int32_t limit;                // the first row sees the tokens before this one, the next one more
  std::int32_t tokens;               // of the sequence
  std::int32_t n_sealed;             // its sealed pages
  std::int32_t first_token;          // of its rows
  std::int32_t page, end_page;       // sealed pages that the block sees
  std::int32_t tile, end_tile;       // tiles of rows that it sees; one tile or page at least
  std::int32_t split;                // of a block that several CTAs share: its number; otherwise negative
  std::int32_t page_slot, row_slot;  // of the sequence's first sealed page and tile of rows
  // Where blocks have rows of several heads: that of the first unit, among those of the KV head; which part
  // of a block that several CTAs share it is, and how many cuts there are in such blocks before it.
  std::int32_t first_head, part, n_parts, first_cut;
};

struct PromptRowSums {
  float reference, mass;
};

struct PromptRows {
  const void* data;  // 16 bits a number
  std::int64_t token_stride, head_stride;
};

struct PromptArgs {
  PromptRows q, k, v;
  NumberType q_type, out_type;   // in half precision; otherwise bf16 or f16, as k and v
  int q_hadamard, out_hadamard;  // not 0: queries and outputs are rotated
  // Not 0: tiles' rows are rotated back instead, which gives the same attention in half precision; rows are
  // those of tail pages.
  int key_hadamard, value_hadamard;
  const float* sink_logits;  // [n_heads], or null
  void* out;
  std::int64_t out_token_stride, out_head_stride;
  float* lse;  // or null
  std::int64_t lse_token_stride, lse_head_stride;
  // In half precision alone: how far scores may be above a row's reference before that follows them, in
  // log2: kHalfSlack, or 0 where it is to be the largest score.
  float slack_log2;
  // For what joins rows behind the kernel, or null: their references, in log2, and the sums of their weights
  // relative to these.
  PromptRowSums* row_sums;       // [queries][n_heads]
  const std::int32_t* q_begins;  // [n_seqs + 1]
  const std::int32_t* k_begins;
  const std::int32_t* sealed_begins;     // [n_seqs + 1], or null: there are no sealed pages
  const std::int32_t* query_sealed;      // [queries]: how many pages each sees, or null: all
  const std::int32_t* first_row_tokens;  // [n_seqs], or null: rows follow the sealed pages
  int n_seqs, n_heads, n_kv_heads, group;
  int mixed;         // query heads whose rows a block may have, a set: 1, or all of a KV head
  int n_sets;        // each attends to all items
  int n_ctas;        // of attention
  int n_claims;      // numbers in `claims`
  float scale_log2;  // of scores, in units of log 2
  int causal;
  int window;            // tokens that a row sees, itself included; 0: all
  int page_slots;        // of sealed pages, before those of rows
  unsigned char* tiles;  // [slots][n_kv_heads]
  float* channels;       // [n_seqs][n_kv_heads][3][D]: the keys' and values' centres, the values' scales; of
                         // integers; null in half precision
  float* halves;         // [kMostHalves] of what a CTA leaves for another (join_halves.cuh, join_parts.cuh)
  // [kMostHalves][groups][2]: how many CTAs have finished; not 0: what one left is there. kClaims where
  // blocks have rows of several heads.
  std::int32_t* claims;
  PromptItem* items;  // the longest first
  std::int32_t* n_items;
  std::int32_t* next;           // work that no CTA has taken yet
  std::int32_t* sets_together;  // so many sets attend to all items before the next ones do
  // Of capped scores c tanh(score / c), otherwise 0: c in units of log 2, and log2 of e^(2 score / c) for a
  // product of 1.
  float softcap_log2, softcap_slope;
};

}  // namespace kvant::cuda
