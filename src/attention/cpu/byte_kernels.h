// The inner loops of the CPU backend, once for each instruction set: sums of products of a page's codes with
// integers, straight from the codes. Orders of bytes: format/code_order.h.
//
// This header and those that the per-instruction-set files include use no inline functions of the standard
// library: compiled with other flags there, they could be linked into code that runs everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cpu/codebook_lookup.h"
#include "base/page_size.h"
#include "format/code_meaning.h"
#include "format/trellis_code.h"

namespace kvant::cpu {

// Query heads that a kernel serves at once: of `left` that are left.
inline constexpr int kMaxHeads = 4;
inline int head_group(int left) {
  return left == 3 || left == 6 ? 3 : left >= 4 ? 4 : 1;
}
using kvant::kMaxHeadDim;
using kvant::kPageTokens;

// The largest number of a query or a weight: both of its bytes are then within -128 .. 127.
inline constexpr int kMaxNumber = 32512;
// Sums over more channels than this have numbers of half the size, so that they fit 32 bits.
inline constexpr int kNarrowHeadDim = 256;
constexpr int max_query_number(int channels) {
  return channels > kNarrowHeadDim ? kMaxNumber / 2 : kMaxNumber;
}

// A query as integers of at most 16 bits, in the order of the codes: quad (block * group_channels + r)
// holds channels group_channels * (4 * block + k) + r, k = 0 .. 3. A block: 4 groups of channels.
struct ByteQuery {
  std::uint32_t quads[kMaxHeadDim / 4][2];   // as the instruction set wants them
  std::int32_t block_sums[kMaxHeadDim / 4];  // of its numbers, by block
  float unit;                                // number * unit = value
};

// Bytes that will be read soon: asked for beside the work, so that they are near by then.
struct NextBytes {
  const std::uint8_t* bytes = nullptr;
  std::ptrdiff_t size = 0;
};

// The codes of a page and what they mean. Wide vectors: bytes that codebook_lookup.h has looked up, for
// scores as groups of 1 channel, for a mix as 4 positions: channel r * groups + g.
struct CodePage {
  const std::uint8_t* codes;  // in the side's order; a multiple of 64 bytes lies before what follows them
  CodeMeaning meaning;
  int bits;
  int group_channels;
  int groups;                 // of a token
  const std::uint8_t* table;  // code_scheme.h
};

// sums[h][t] = the sum over channels of blocks [first_block, end_block) of query number * code number, for
// tokens [first_token, end_token), multiples of 32.
struct ScoreTask {
  CodePage page;
  int first_block, end_block;
  int first_token, end_token;
  int n_heads;  // 1, 3 or 4: head_group()
  const ByteQuery* queries[kMaxHeads];
  std::int32_t* sums[kMaxHeads];  // [kPageTokens]
  NextBytes next;
};

// Integer products round weights to this many units of the largest (TurboAttention).
inline constexpr int kWholeMax = 119;

// Weights of a page's tokens as integers, in the order that the instruction set wants.
struct ByteWeights {
  std::uint64_t octets[kPageTokens / 8][2];
  std::int32_t sum;  // of the numbers
  float unit;
};

// out[h][r * groups + g] += unit * channel_scale[r * groups + g] * the sum over the tokens of `octets` of
// weight number * code number, with the weights [g / weight_groups] of the head.
struct MixTask {
  CodePage page;
  int weight_groups;           // groups of channels that share weights: a multiple of 4
  const std::uint8_t* octets;  // which groups of 8 tokens, ascending: the others' weights are 0
  int n_octets;
  bool small_weights;  // numbers are within -128 .. 127
  int n_heads;
  const ByteWeights* weights[kMaxHeads];  // [groups / weight_groups]
  const float* channel_scale;             // in the order of `out`; null: 1
  float* out[kMaxHeads];                  // [group_channels * groups]
  NextBytes next;
};

// What a query adds to sums of products: see add_scores.
struct ScoreFactors {
  bool before;  // scores are there already; else what they hold does not count
  float unit, q_sum, constant;
};

// Sums over tokens: of the weights, and of weights times the tokens' offsets.
struct WeightSums {
  float weights, offsets;
};

// A page's rows as numbers of one type, [n_tokens][d], d a multiple of 8.
struct Rows {
  const void* values;
  NumberType type;
  int n_tokens, d;
  NextBytes next;
};

// Tokens of a page that share parameters (code_scheme.h), with their scales and offsets; null: none.
struct TokenParameters {
  const float* scale;   // [kPageTokens]
  const float* offset;  // [kPageTokens]
};

// What belongs to one row of a tile's products; see TileTask.
struct RowFactors {
  std::int32_t bias;
  float unit, offset, constant;
};

// Products of many rows of numbers with the bytes of one page, expanded once for all of them:
//
// out[r][i] = (before ? out[r][i] : 0) + unit * scale[i] * (the sum over quads of number * byte - bias) +
//             offset * lane_offset[i] + constant
//
// for lanes i in [first_lane, end_lane), multiples of kTileLanes.
struct TileTask {
  const std::uint8_t* bytes;  // [quads][lanes][4]
  int lanes;
  int first_quad, end_quad;
  int first_lane, end_lane;
  int n_rows;
  const ByteQuery* numbers;   // [n_rows]
  const RowFactors* factors;  // [n_rows]
  bool before;
  const float* scale;        // [lanes]; null: 1
  const float* lane_offset;  // [lanes]; null: 0
  float* out;                // [n_rows][lanes], `stride` values from row to row
  std::ptrdiff_t stride;
};
inline constexpr int kTileLanes = 16;

// Products for tiles of many queries, of codes that are numbers or states. All null: such products are no
// faster than F32 ones of decoded pages.
struct TileKernels {
  // bytes[quad][t][4], quads as a ByteQuery has them: for scores.
  void (*expand_for_scores)(const CodePage& page, std::uint8_t* bytes);
  // bytes[t / 4][channel][t % 4]: for a mix.
  void (*expand_for_mix)(const CodePage& page, std::uint8_t* bytes);
  void (*multiply)(const TileTask& task);
  // The largest of kPageTokens scores.
  float (*largest)(const float* scores);
  // scores[t] <- exp(scores[t] - max), 0 or less than 1e-37 where that is far below 0; returns the sum.
  float (*exponentials)(float* scores, float max);
  // Numbers of weights[t] * tokens.scale[t] for t in [first, end), multiples of 32, each at most `bound`:
  // quad t / 4 holds tokens t - t % 4 + k, k = 0 .. 3. block_sums[0]: of those numbers.
  WeightSums (*prepare_weights)(const float* weights, const TokenParameters& tokens, int first, int end,
                                float bound, ByteQuery& out);
};

// Products of rows of unsigned bytes with the signed bytes of a page:
//
// out[r][i] = (before ? out[r][i] : 0) + factor[r] * scale[i] * (first[i] + the sum over quads of byte *
// byte)
//
// for lanes i in [0, lanes), a multiple of kTileLanes.
struct ByteTask {
  const std::uint8_t* rows;  // [n_rows][quads][4]
  const std::int8_t* bytes;  // [quads][lanes][4]
  int n_rows, quads, lanes;
  const std::int32_t* first;  // [lanes]; null: 0
  const float* factor;        // [n_rows]
  const float* scale;         // [lanes]; null: 1
  const float* offset;        // [n_rows]
  const float* lane_offset;   // [lanes]; null: 0
  bool before;
  float* out;  // [n_rows][lanes]
};

// The weights of one row over the tokens of a page.
struct ByteWeighing {
  float top;  // the largest of log2(weight * scale); -inf: nothing seen, and all bytes are 0
  float sum;  // of the weights, in units of 2^top
};
inline constexpr float kLargestByte = 255;

// Attention in bytes (flashq.h). All null: no faster than F32 products of whole numbers.
struct PromptKernels {
  void (*multiply)(const ByteTask& task);
  // bytes[t] = kLargestByte * weight * scale / 2^top of scores[kPageTokens], rounded, with weight =
  // exp(score); by its logarithm to base 2 and its inverse.
  ByteWeighing (*weigh)(const float* scores, const float* log_scale, const float* inverse_scale,
                        std::uint8_t* bytes);
};

// One instruction set.
struct ByteKernels {
  const char* name;   // "avx512"
  bool large_tables;  // vectors' codes are looked up fast: else a page's are better looked up beforehand
  CodebookLookup lookup;

  // query = values * scale (null: 1) as numbers, values [4 * group_channels * blocks]. whole: they are whole
  // numbers within +-32512, unit 1. sums: set block_sums too, which codes with a bias need.
  void (*prepare_query)(const float* values, const float* scale, int group_channels, int blocks, bool whole,
                        bool sums, ByteQuery& query);
  void (*score)(const ScoreTask& task);
  // scores[t] = scores[t] (if before) + sums[t] * unit * tokens.scale[t] + q_sum * tokens.offset[t] +
  // constant for t in [first, end), multiples of 32.
  void (*add_scores)(const std::int32_t* sums, const ScoreFactors& factors, const TokenParameters& tokens,
                     int first, int end, float* scores);

  // out = weights * tokens.scale as numbers, weights [kPageTokens], those outside [first, end) (multiples of
  // 32) left out. whole: as integers within +-kWholeMax, in units of the largest, not scaled.
  WeightSums (*prepare_weights)(const float* weights, const TokenParameters& tokens, int first, int end,
                                bool whole, ByteWeights& out);
  void (*mix)(const MixTask& task);

  // scores[h][t] = q[h] . rows[t]; out[h] += sum over t of weights[h][t] * rows[t]. q and out have row stride
  // d, scores and weights `stride`.
  void (*score_rows)(const Rows& rows, const float* q, int n_heads, float* scores, std::ptrdiff_t stride);
  void (*mix_rows)(const Rows& rows, const float* weights, std::ptrdiff_t stride, int n_heads, float* out);

  // n: a multiple of 8.
  float (*dot)(const float* a, const float* b, int n);
  float (*sum)(const float* x, int n);

  TileKernels tiles;
  PromptKernels prompts;
};

inline constexpr const char* kInstructionSets[] = {"avx512", "avxvnni", "avx2", "portable"};  // best first

// The best set that this machine can run, or the one called `name`; null where the machine or the build lacks
// it (a build with KVANT_KERNELS=here has no other set than the best of the machine that made it).
const ByteKernels* best_kernels();
const ByteKernels* find_kernels(const char* name);

// Those of this build; null where it has none.
const ByteKernels* avx512_kernels();
const ByteKernels* avxvnni_kernels();
const ByteKernels* avx2_kernels();
const ByteKernels* portable_kernels();

}  // namespace kvant::cpu
