// Defines the arguments of the prefill attention kernels. A call makes a plan of items, which are blocks of
// query tokens. CTAs of the attention kernel take pairs of an item and a head until none are left.
#pragma once

#include <cstdint>

#include "device/cuda/common/arguments.h"

namespace kvant::cuda {

// A tile's exact half-precision weights may exceed a row's reference by this much in log2. Half precision
// ends at 16.
inline constexpr float kHalfSlack = 8;

// Blocks that several CTAs share have at most this many cuts over all heads, which is more than a GPU has
// SMs.
inline constexpr int kMostHalves = 192;
// If blocks have rows of several heads, one block has at most kMostParts parts. All items that are cut have
// at most kMostPieces pieces.
inline constexpr int kMostParts = 18, kMostPieces = 224;
// The CTAs of a block with rows of several heads communicate through this many numbers (join_parts.cuh): two
// counts, and where each part's sums lie.
inline constexpr int kClaims = 2 + kMostParts;

// Says how the query rows of a sequence form blocks of n units of `rows` rows each. If a block has several
// units, they belong to all query heads of a KV head. The first unit of each head comes before the second
// unit of any head. Blocks are then full, and about the same tokens are visible to all rows of a block.
struct BlockUnits {
  int rows, n;
};

// Describes a block of query tokens of one sequence. All heads share an item, or all KV heads if a block has
// units of several heads. Tokens and pages are counted from the start of the sequence.
struct PromptItem {
  std::int32_t seq;
  std::int32_t first_row;  // row among the query tokens of all sequences
  std::int32_t n_rows;     // rows of each head
  // Tokens before `limit` are visible to the first row, and one token more is visible to each later row.
  std::int32_t limit;
  std::int32_t tokens;          // tokens of the sequence
  std::int32_t n_sealed;        // sealed pages of the sequence
  std::int32_t first_token;     // first token of the rows
  std::int32_t page, end_page;  // sealed pages [page, end_page) that the block reads
  // The block reads tiles [tile, end_tile) of rows. A block has at least one tile or page.
  std::int32_t tile, end_tile;
  std::int32_t split;  // number of a block that several CTAs share; otherwise negative
  // The sequence's first sealed page and first tile of rows have these slots.
  std::int32_t page_slot, row_slot;
  // The members from first_head to first_cut are used if blocks have rows of several heads. first_head is the
  // first unit's head within the KV head. If several CTAs share a block, this item is part `part` of n_parts.
  // first_cut is the number of cuts in earlier blocks of this kind.
  std::int32_t first_head, part, n_parts, first_cut;
};

// Holds a row's reference in log2, and the sum of the row's weights relative to 2^reference.
struct PromptRowSums {
  float reference, mass;
};

// Locates rows of 16-bit or F32 numbers. Strides are in numbers.
struct PromptRows {
  const void* data;
  std::int64_t token_stride, head_stride;
};

struct PromptArgs {
  PromptRows q, k, v;
  // Half precision accepts any type. For integers, the types are BF16 or F16, like the types of k and v.
  NumberType q_type, out_type;
  int q_hadamard, out_hadamard;  // Nonzero makes kernels rotate queries and outputs.
  // Nonzero makes kernels undo the rotation of tiles' rows, which gives the same attention in half precision
  // as rotated queries and outputs. Rows must then come from tail pages.
  int key_hadamard, value_hadamard;
  const float* sink_logits;  // [n_heads], or null
  void* out;
  std::int64_t out_token_stride, out_head_stride;
  float* lse;  // Null means that no LSE is wanted.
  std::int64_t lse_token_stride, lse_head_stride;
  // Only half precision uses this number. If scores exceed a row's reference by more than this number in
  // log2, the reference follows. The number is kHalfSlack, or 0 if the reference must be the largest score.
  float slack_log2;
  // A later kernel that corrects rows needs their references and sums of weights. Null means that no kernel
  // corrects rows.
  PromptRowSums* row_sums;       // [queries][n_heads]
  const std::int32_t* q_begins;  // [n_seqs + 1]
  const std::int32_t* k_begins;
  const std::int32_t* sealed_begins;     // [n_seqs + 1]; null if there are no sealed pages
  const std::int32_t* query_sealed;      // [queries], pages that each query reads in sealed form; null if all
  const std::int32_t* first_row_tokens;  // [n_seqs]; null if rows follow the sealed pages
  int n_seqs, n_heads, n_kv_heads, group;
  // A block has rows of this many query heads, called a set: 1, or all of a KV head.
  int mixed;
  // There are n_sets sets of heads, and each set attends to all items.
  int n_sets;
  int n_ctas;    // CTAs of the attention kernel
  int n_claims;  // numbers in `claims`
  // A product of a query and a key times this factor is a score in units of log 2.
  float scale_log2;
  int causal;
  int window;            // tokens that are visible to a row, including its own; 0 if all
  int page_slots;        // slots of sealed pages, before those of rows
  unsigned char* tiles;  // [slots][n_kv_heads]
  // Holds the centres of keys, the centres of values and the scales of values, [n_seqs][n_kv_heads][3][D].
  // Kernels in half precision do not need the numbers, and the pointer is then null.
  float* channels;
  // Holds sums that a CTA leaves for another CTA, in one of kMostHalves places (join_halves.cuh,
  // join_parts.cuh).
  float* halves;
  // Holds pairs of numbers, [kMostHalves][groups][2]. The first number says how many CTAs have finished. The
  // second number is nonzero once a CTA's sums have arrived. If blocks have rows of several heads, a block
  // has kClaims numbers.
  std::int32_t* claims;
  PromptItem* items;  // the longest first
  std::int32_t* n_items;
  std::int32_t* next;  // the first piece of work that no CTA has taken
  // This many sets attend to all items before the next sets start.
  std::int32_t* sets_together;
  // Capped scores are c tanh(score / c). softcap_log2 is c in units of log 2, and softcap_slope is log2 of
  // e^(2 score / c) for a product of 1. Both numbers are 0 without a cap.
  float softcap_log2, softcap_slope;
};

}  // namespace kvant::cuda
