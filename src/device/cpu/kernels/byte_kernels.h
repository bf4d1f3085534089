// Declares the inner loops of the CPU backend. Each instruction set implements the table ByteKernels once,
// and the backend picks the best table at run time. Most loops multiply a page's codes with integers
// directly, without decoding the page first. format/code_order.h describes the order of the codes.
//
// This header and the headers of the instruction sets use no inline functions of the standard library. The
// files of an instruction set are compiled with other flags. The linker could pick their copy of an inline
// function for code that runs on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/page_size.h"
#include "device/cpu/kernels/codebook_lookup.h"
#include "format/code_meaning.h"
#include "format/trellis_code.h"

namespace kvant::cpu {

// A kernel serves at most kMaxHeads query heads at once. head_group() returns how many of the `left`
// remaining heads the next call serves.
inline constexpr int kMaxHeads = 4;
inline int head_group(int left) {
  return left == 3 || left == 6 ? 3 : left >= 4 ? 4 : 1;
}
using kvant::kMaxHeadDim;
using kvant::kPageTokens;

// Numbers of queries and weights are at most kMaxNumber, which keeps both of their bytes within -128 .. 127.
inline constexpr int kMaxNumber = 32512;
// If a sum covers more than kNarrowHeadDim channels, its numbers are at most half of kMaxNumber, so the sum
// fits into 32 bits.
inline constexpr int kNarrowHeadDim = 256;
constexpr int max_query_number(int channels) {
  return channels > kNarrowHeadDim ? kMaxNumber / 2 : kMaxNumber;
}

// Holds a query as integers of at most 16 bits, in the order of the codes. A block is 4 groups of channels.
// Quad (block * group_channels + r) holds channels group_channels * (4 * block + k) + r for k = 0 .. 3.
struct ByteQuery {
  // Each instruction set packs the two words in its own way.
  std::uint32_t quads[kMaxHeadDim / 4][2];
  // Holds the sum of each block's numbers.
  std::int32_t block_sums[kMaxHeadDim / 4];
  // Tells whether all numbers are within +-kMostSmallNumber.
  bool small;
  // A value is its number times `unit`.
  float unit;
};

// Names bytes that will be read soon. A kernel prefetches them while it computes.
struct NextBytes {
  const std::uint8_t* bytes = nullptr;
  std::ptrdiff_t size = 0;
};

// Describes the codes of a page. Pages of wide vectors hold bytes that codebook_lookup.h has looked up
// before. For scores these bytes form groups of 1 channel. For a mix they form 4 positions, with channel r *
// groups + g at position r of group g.
struct CodePage {
  // The codes are in their side's order. Whatever follows them begins a multiple of 64 bytes after their
  // start.
  const std::uint8_t* codes;
  CodeMeaning meaning;
  int bits;
  int group_channels;
  int groups;  // groups of a token
  // code_scheme.h describes the table.
  const std::uint8_t* table;
};

// Asks for sums[h][t] = the sum of query number * code number over the channels of blocks [first_block,
// end_block), for tokens t in [first_token, end_token). The two token bounds are multiples of 32.
struct ScoreTask {
  CodePage page;
  int first_block, end_block;
  int first_token, end_token;
  int n_heads;  // 1, 3 or 4, as head_group() returns
  // Tells whether the numbers of all queries are small.
  bool small_queries;
  const ByteQuery* queries[kMaxHeads];
  std::int32_t* sums[kMaxHeads];  // [kPageTokens]
  NextBytes next;
};

// Small numbers take one byte and half of the products. Queries and weights are rounded to small numbers if
// that adds little to the error of the codes. Small numbers of queries have a sign.
inline constexpr int kMostSmallNumber = 127;

// Says how exactly a query must be rounded.
struct QueryRounding {
  // The values are whole numbers within +-32512, and the unit is 1.
  bool whole = false;
  // block_sums are needed. Codes with a bias need these sums.
  bool sums = false;
  // The query is rounded to small numbers if the variance of the rounding errors, times the number of
  // channels, is at most this share of the sum of the query's squares.
  float small_share = 0;
};

// Counts what the rounding of weights costs over the pages of a run. Weights of a page are rounded to small
// numbers if `error` then is at most `share` of `squares`.
struct WeightRounding {
  float share = 0;
  float squares = 0;  // sum of the squared weights, times the tokens' scales
  float error = 0;    // sum of the variances of rounding errors
};

// TurboAttention's integer products round weights to multiples of 1 / kWholeMax of the largest weight.
inline constexpr int kWholeMax = 119;

// Holds the weights of a page's tokens as integers, packed as the instruction set needs them.
struct ByteWeights {
  std::uint64_t octets[kPageTokens / 8][2];
  // Holds the sum of the integers.
  std::int32_t sum;
  float unit;
  // Tells whether the instruction set can multiply the integers as small numbers.
  bool small;
};

// Asks for out[h][r * groups + g] += unit * channel_scale[r * groups + g] * the sum of weight number * code
// number over the tokens of `octets`. Group g uses weights[h][g / weight_groups].
struct MixTask {
  CodePage page;
  // Counts the neighbouring groups of channels that share weights; a multiple of 4.
  int weight_groups;
  // Lists groups of 8 tokens in ascending order. Tokens of all other groups have weight 0.
  const std::uint8_t* octets;
  int n_octets;
  // Tells whether the weights of all heads are small.
  bool small_weights;
  int n_heads;
  const ByteWeights* weights[kMaxHeads];  // [groups / weight_groups]
  const float* channel_scale;             // [group_channels * groups] like `out`; null means 1
  float* out[kMaxHeads];                  // [group_channels * groups]
  NextBytes next;
};

// Holds what add_scores() needs from a query to turn sums of products into scores.
struct ScoreFactors {
  // True adds to the scores that are there already; false overwrites them.
  bool before;
  float unit, q_sum, constant;
};

// Holds two sums over tokens: the sum of the weights, and the sum of the weights times the tokens' offsets.
struct WeightSums {
  float weights, offsets;
};

// Describes a page's rows as numbers of one type: [n_tokens][d], with d a multiple of 8.
struct Rows {
  const void* values;
  NumberType type;
  int n_tokens, d;
  NextBytes next;
};

// Holds the scale and the offset of each token of a page (token_scale and token_offset in code_scheme.h). A
// null `scale` stands for scales of 1, and a null `offset` for offsets of 0.
struct TokenParameters {
  const float* scale;   // [kPageTokens]
  const float* offset;  // [kPageTokens]
};

// Holds the factors of one row in TileTask.
struct RowFactors {
  std::int32_t bias;
  float unit, offset, constant;
};

// Asks for the products of many rows of numbers with the bytes of one page. The page is expanded to bytes
// once for all rows:
//
// out[r][i] = (before ? out[r][i] : 0) + unit * scale[i] * (the sum over quads of number * byte - bias) +
//             offset * lane_offset[i] + constant
//
// The lanes i are in [first_lane, end_lane), two multiples of kTileLanes.
struct TileTask {
  const std::uint8_t* bytes;  // [quads][lanes][4]
  int lanes;
  int first_quad, end_quad;
  int first_lane, end_lane;
  int n_rows;
  const ByteQuery* numbers;   // [n_rows]
  const RowFactors* factors;  // [n_rows]
  bool before;
  const float* scale;        // [lanes]; null means 1
  const float* lane_offset;  // [lanes]; null means 0
  float* out;                // [n_rows][lanes], with a distance of `stride` values between rows
  std::ptrdiff_t stride;
};
inline constexpr int kTileLanes = 16;

// Holds products for tiles of many queries, for codes that are numbers or states. All functions are null if
// F32 products of decoded pages are as fast on the instruction set.
struct TileKernels {
  // True if the products take signed bytes. 128 is then subtracted from expanded codes of states and of 8
  // bits.
  bool signed_codes;
  // Expands codes for scores to bytes[quad][t][4], with the quads of ByteQuery.
  void (*expand_for_scores)(const CodePage& page, std::uint8_t* bytes);
  // Expands codes for a mix to bytes[t / 4][channel][t % 4].
  void (*expand_for_mix)(const CodePage& page, std::uint8_t* bytes);
  void (*multiply)(const TileTask& task);
  // Returns the largest of kPageTokens scores.
  float (*largest)(const float* scores);
  // Sets scores[t] = exp(scores[t] - max) and returns the sum. Results far below 1e-37 may become 0 or
  // another value below 1e-37.
  float (*exponentials)(float* scores, float max);
  // Turns weights[t] * tokens.scale[t] into integers of at most kMaxNumber, for t in [first, end), two
  // multiples of 32. The products are at most `bound` in magnitude. Quad t / 4 of `out` holds tokens t - t %
  // 4 + k for k = 0 .. 3. out.block_sums[0] is the sum of the integers.
  WeightSums (*prepare_weights)(const float* weights, const TokenParameters& tokens, int first, int end,
                                float bound, ByteQuery& out);
};

// Asks for the products of rows of unsigned bytes with the signed bytes of a page:
//
// out[r][i] = (before ? out[r][i] : 0) + offset[r] * lane_offset[i] +
//             factor[r] * scale[i] * (first[i] + the sum over quads of byte * byte)
//
// The lanes i are in [0, lanes), and `lanes` is a multiple of kTileLanes.
struct ByteTask {
  const std::uint8_t* rows;  // [n_rows][quads][4]
  const std::int8_t* bytes;  // [quads][lanes][4]
  int n_rows, quads, lanes;
  const std::int32_t* first;  // [lanes]; null means 0
  const float* factor;        // [n_rows]
  const float* scale;         // [lanes]; null means 1
  const float* offset;        // [n_rows]
  const float* lane_offset;   // [lanes]; null means 0
  bool before;
  float* out;  // [n_rows][lanes]
};

// Holds the weights of one row over the tokens of a page.
struct ByteWeighing {
  // Holds the largest log2(weight * scale). The value -inf means that no token is seen, and all bytes are 0.
  float top;
  // Holds the sum of the weights in units of 2^top.
  float sum;
};
inline constexpr float kLargestByte = 255;

// Holds attention in bytes (flashq.h). The functions are null if F32 products of rounded numbers are as fast
// on the instruction set.
struct PromptKernels {
  void (*multiply)(const ByteTask& task);
  // Sets bytes[t] to kLargestByte * weight * scale / 2^top, rounded, with weight = exp(scores[t]). scores:
  // [kPageTokens]. The token's scale is given by its logarithm to base 2 and by its inverse.
  ByteWeighing (*weigh)(const float* scores, const float* log_scale, const float* inverse_scale,
                        std::uint8_t* bytes);
};

// Holds the kernels of one instruction set.
struct ByteKernels {
  // An example is "avx512".
  const char* name;
  // The flag is true if the kernels look up codes of vectors fast; otherwise a page's codes are looked up
  // before the products.
  bool large_tables;
  // The flag is true if products of small queries take half of the time.
  bool small_numbers;
  CodebookLookup lookup;

  // Turns values * scale into the integers of a query; `scale` may be null for 1. values: [4 * group_channels
  // * blocks].
  void (*prepare_query)(const float* values, const float* scale, int group_channels, int blocks,
                        const QueryRounding& rounding, ByteQuery& query);
  void (*score)(const ScoreTask& task);
  // Sets scores[t] = sums[t] * unit * tokens.scale[t] + q_sum * tokens.offset[t] + constant, plus the old
  // scores[t] if `before` is set. The tokens t are in [first, end), two multiples of 32.
  void (*add_scores)(const std::int32_t* sums, const ScoreFactors& factors, const TokenParameters& tokens,
                     int first, int end, float* scores);

  // Turns weights * tokens.scale into integers. weights: [kPageTokens]. The call writes the octets of tokens
  // [first, end), two multiples of 32, and leaves the others. The integers are small if `rounding` allows
  // that; null does not.
  WeightSums (*prepare_weights)(const float* weights, const TokenParameters& tokens, int first, int end,
                                WeightRounding* rounding, ByteWeights& out);
  // Works like prepare_weights(), but the unscaled weights, which must not be negative, become integers of at
  // most kWholeMax, in proportion to the largest weight.
  WeightSums (*prepare_whole_weights)(const float* weights, const TokenParameters& tokens, int first, int end,
                                      ByteWeights& out);
  void (*mix)(const MixTask& task);

  // Compute scores[h][t] = q[h] . rows[t] and out[h] += the sum over t of weights[h][t] * rows[t]. Rows of q
  // and out are d values apart, rows of scores and weights `stride` values.
  void (*score_rows)(const Rows& rows, const float* q, int n_heads, float* scores, std::ptrdiff_t stride);
  void (*mix_rows)(const Rows& rows, const float* weights, std::ptrdiff_t stride, int n_heads, float* out);

  // n must be a multiple of 8.
  float (*dot)(const float* a, const float* b, int n);
  float (*sum)(const float* x, int n);

  TileKernels tiles;
  PromptKernels prompts;
};

// Names the sets of instruction_sets.def, from the best to the worst.
inline constexpr const char* kInstructionSets[] = {
#define KVANT_INSTRUCTION_SET(set) #set,
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET
};

// Return the best instruction set that this machine can run, or the set called `name`. The result of
// find_kernels() is null if the machine or the build lacks the set. A build with KVANT_KERNELS=here has only
// the best set of the machine that built it.
const ByteKernels* best_kernels();
const ByteKernels* find_kernels(const char* name);

// Return the kernels of each set, or null if this build does not contain the set.
#define KVANT_INSTRUCTION_SET(set) const ByteKernels* set##_kernels();
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET

}  // namespace kvant::cpu
