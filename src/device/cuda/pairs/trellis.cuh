// Attends to keys and values tcq1 to tcq6. Products are integer products, and one operand consists of the
// levels' bytes. Queries and weights are split into two bytes each, in separate columns (integer_query.cuh).
// A lane of a product therefore has the sums of one query head. Groups of more than four query heads take two
// sets of columns.
//
// A page's scores are computed first. The page's weights follow, relative to the page's own largest score, so
// 15 bits are enough for a weight. The sums of values come last. Scores and weights pass through shared
// memory. Loops over parts of a page must not be unrolled, because their code must stay in the instruction
// cache.
#pragma once

#include "device/cuda/page/trellis_parameters.cuh"
#include "device/cuda/pairs/integer_query.cuh"
#include "device/cuda/pairs/trellis_states.cuh"
#include "format/trellis_gain.h"

namespace kvant::cuda {

inline constexpr int kSteps = kPageTokens / 32;  // steps of 32 tokens, each a contraction over weights

// In each lane, a part of a page has 128 * kTimes values. A part spans one or two steps.
template <int D>
inline constexpr int kTimes = D == 256 ? 2 : 1;
template <int D>
inline constexpr int kStepsOfPart = 128 * kTimes<D> / D;
template <int Bits, int D>
inline constexpr int kPartBytes = kTimes<D>* Bits * 4 * kLanes * 4;

// TokenGains holds the gains of this lane's tokens, which are tokens 4g .. 4g + 3 of each step. A gain is an
// 8-bit code in steps of 1/32 octave below the loudest gain.
template <int Steps>
struct TokenGains {
  std::uint32_t codes[Steps];

  __device__ __forceinline__ TokenGains(const unsigned char* parameters, int lane) {
#pragma unroll
    for (int i = 0; i < Steps; ++i)
      codes[i] = *reinterpret_cast<const std::uint32_t*>(parameters + i * 32 + lane / 4 * 4);
  }
  // Returns the codes of step `i`, which need not be a compile-time constant.
  __device__ __forceinline__ std::uint32_t of_step(int i) const {
    const std::uint32_t low = i == 0 ? codes[0] : codes[Steps > 1 ? 1 : 0];
    if constexpr (Steps <= 2) return low;
    const std::uint32_t high = i == 2 ? codes[2] : codes[Steps - 1];
    return i < 2 ? low : high;
  }
  // Returns the gain of token j of a step relative to the loudest gain. `table` holds the relative gains of
  // all codes.
  static __device__ __forceinline__ float relative(const unsigned char* table, std::uint32_t step, int j) {
    const std::uint32_t offset = (j == 0 ? step << 2 : step >> (8 * j - 2)) & 0x3fc;
    return *reinterpret_cast<const float*>(table + offset);
  }
};

// Loads the codes of keys for a part of a page.
template <int Bits, int D>
__device__ __forceinline__ TrellisColumns<Bits, 4 * kTimes<D>, kTimes<D>> key_columns(
    const unsigned char* codes, int lane) {
  constexpr int kGroups = 4 * kTimes<D>;
  TrellisColumns<Bits, kGroups, kTimes<D>> columns(reinterpret_cast<const uint4*>(codes) + lane);
  // The columns of a token are consecutive in the groups of a lane and continue in the next lane.
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const std::uint32_t before =
        group % kTimes<D> != 0 ? columns.own_last_bytes(group - 1)
                               : columns.last_bytes(group + kTimes<D> - 1, lane / 4 * 4 + (lane + 3) % 4);
    columns.before[group] = __byte_perm(columns.own_last_bytes(group), before, D >= 128 ? 0x2107 : 0x2705);
  }
  return columns;
}

// Computes the products `s` of the queries with the levels of keys for a part of a page.
template <int Bits, int D, int Sets>
__device__ __forceinline__ void score_levels(const unsigned char* codes, const IntegerQuery<D> (&query)[Sets],
                                             int lane, int (&s)[Sets][2 * kStepsOfPart<D>][4]) {
  const auto columns = key_columns<Bits, D>(codes, lane);
#pragma unroll
  for (int m = 0; m < 2 * kStepsOfPart<D>; ++m) {
    int second[Sets][4] = {};  // a second sum halves the dependency chain of products
#pragma unroll
    for (int k = 0; k < D / 32; ++k) {
      LevelFragment a;
      if constexpr (D >= 128) {  // one or two groups for each of the two rows
#pragma unroll
        for (int reg = 0; reg < 4; ++reg)
          set_levels(columns, (2 * m + reg % 2) * kTimes<D> + k / 4, 2 * (k % 4) + reg / 2, reg, a);
      } else {  // two columns of a group for each of the two rows
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t even = columns.states(m, 4 * k + 2 * half);
          const std::uint32_t odd = columns.states(m, 4 * k + 2 * half + 1);
          set_levels<Bits>(__byte_perm(even, odd, 0x5410), 2 * half, a);
          set_levels<Bits>(__byte_perm(even, odd, 0x7632), 2 * half + 1, a);
        }
      }
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        mma_s8(s[set][m], a[0], query[set].b[k][0], query[set].b[k][1]);
        mma_s8(second[set], a[1], query[set].b[k][0], query[set].b[k][1]);
      }
    }
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[set][m][i] += second[set][i];
    }
  }
}

// StepWeights holds the weights of 32 tokens as the B operand. The bytes belong to tokens 4t .. 4t + 3 and 4t
// + 16 .. 4t + 19.
using StepWeights = std::uint32_t[2];

// Computes out += the weights times the levels of values, for a part of a page and the m tiles from `First`
// on.
template <int Bits, int D, int Sets, int First, int Tiles>
__device__ __forceinline__ void mix_levels(const unsigned char* codes,
                                           const StepWeights (&weights)[Sets][kStepsOfPart<D>], int lane,
                                           int (&out)[Sets][Tiles][4]) {
  TrellisColumns<Bits, 2 * kStepsOfPart<D>, kTimes<D>> columns(reinterpret_cast<const uint4*>(codes) + lane);
#pragma unroll
  for (int group = 0; group < 2 * kStepsOfPart<D>; ++group)
    columns.before[group] = columns.last_bytes(group, (lane + 28) % 32);
#pragma unroll
  for (int step = 0; step < kStepsOfPart<D>; ++step) {
#pragma unroll
    for (int m = 0; m < Tiles; ++m) {
      LevelFragment a;
#pragma unroll
      for (int reg = 0; reg < 4; ++reg)
        set_levels(columns, 2 * step + reg / 2, 2 * (First + m) + reg % 2, reg, a);
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        mma_s8_u8(out[set][m], a[0], weights[set][step][0], weights[set][step][1]);
        mma_s8_u8(out[set][m], a[1], weights[set][step][0], weights[set][step][1]);
      }
    }
  }
}

// Calls body(constant) with `bits` as a compile-time constant.
template <class Body>
__device__ __forceinline__ void with_bits(int bits, const Body& body) {
  switch (bits) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    case 5:
      return body(std::integral_constant<int, 5>{});
    default:
      return body(std::integral_constant<int, 6>{});
  }
}

// Works like with_bits(), but compares `bits` with one width after another. A switch would load its target
// from constant memory, which costs short kernels a wait. Votes keep the compiler from making a switch.
template <class Body>
__device__ __forceinline__ void with_bits_in_turn(int bits, const Body& body) {
  [&]<int... Bits>(std::integer_sequence<int, Bits...>) {
    (void)((__any_sync(~0U, bits == Bits) != 0 && (body(std::integral_constant<int, Bits>{}), true)) || ...);
  }
  (std::integer_sequence<int, 4, 3, 2, 5, 6, 1>{});
}

// HeadSums holds a lane's sums for query head t of a set, in rows g and g + 8 of the m tiles as in
// Accumulator.
template <int D>
struct HeadSums {
  float out[D / 16][2] = {};
  float max = kNoScore;
  float sum = 0;  // sum over this lane's tokens
};

// Describes how a page contributes to a head's sums.
struct PageWeights {
  float keep;   // factor of the head's previous sums
  float share;  // factor of this page's sums
  float total;  // sum of all weights of the page, relative to the largest
};

// Stores the weights of a page's tokens for one head in shared memory, as integers of 15 bits. The order is
// [step][head][four tokens of g], with 16 bits for each integer.
template <int D, int Steps>
__device__ __forceinline__ PageWeights weigh(const float4 (&s)[Steps], const TokenGains<Steps>& gains,
                                             const unsigned char* gain_table, int lane, HeadSums<D>& head,
                                             uint2* weights) {
  float top = kNoScore;
#pragma unroll
  for (int i = 0; i < Steps; ++i) top = fmaxf(fmaxf(fmaxf(s[i].x, s[i].y), fmaxf(s[i].z, s[i].w)), top);
#pragma unroll
  for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, step));
  float total = 0;
#pragma unroll
  for (int i = 0; i < Steps; ++i) {
    const float x[4] = {s[i].x, s[i].y, s[i].z, s[i].w};
    std::uint32_t integers[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float weight = exp2_fast(x[j] - top);
      total += weight;
      // The last bits of 2^23 + n are those of the integer n.
      integers[j] = __float_as_uint(
          fmaf(weight, TokenGains<Steps>::relative(gain_table, gains.codes[i], j) * 32767, 8388608.0F));
    }
    weights[i * 32 + lane % 4 * 8 + lane / 4] = make_uint2(__byte_perm(integers[0], integers[1], 0x5410),
                                                           __byte_perm(integers[2], integers[3], 0x5410));
  }
  const float higher = fmaxf(head.max, top);
  PageWeights page{exp2_fast(head.max - higher), exp2_fast(top - higher), 0};
  head.max = higher;
  head.sum = fmaf(head.sum, page.keep, total * page.share);
  page.total = sum_over_tokens(total);
  return page;
}

// Holds the means of the lane's D / 4 channels of a page, as an operand of products with queries
// (IntegerQuery::channel). bytes[k][half] belongs to contraction tile k and register `half` of a row.
template <int D>
struct MeanCodes {
  std::uint32_t bytes[D / 32][2];

  __device__ __forceinline__ MeanCodes(const unsigned char* means, int lane) {
    constexpr int kWords = D / 16;
    std::uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(means + lane % 4 * (D / 4))[i];
      words[4 * i] = four.x;
      words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z;
      words[4 * i + 3] = four.w;
    }
    constexpr int kLower = 0x5140, kUpper = 0x7362;  // interleave two bytes of each of two words
    if constexpr (D >= 128) {
#pragma unroll
      // Every second of eight words contributes its first byte, then its second byte, and so on.
      for (int i = 0; i < D / 64; ++i) {
        const int first = i / 2 * 8 + i % 2;
        const std::uint32_t lower[2] = {__byte_perm(words[first], words[first + 2], kLower),
                                        __byte_perm(words[first + 4], words[first + 6], kLower)};
        const std::uint32_t upper[2] = {__byte_perm(words[first], words[first + 2], kUpper),
                                        __byte_perm(words[first + 4], words[first + 6], kUpper)};
        bytes[2 * i][0] = __byte_perm(lower[0], lower[1], 0x5410);
        bytes[2 * i][1] = __byte_perm(lower[0], lower[1], 0x7632);
        bytes[2 * i + 1][0] = __byte_perm(upper[0], upper[1], 0x5410);
        bytes[2 * i + 1][1] = __byte_perm(upper[0], upper[1], 0x7632);
      }
    } else {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        bytes[k][0] = __byte_perm(words[k], words[k + 2], kLower);
        bytes[k][1] = __byte_perm(words[k], words[k + 2], kUpper);
      }
    }
  }
};

inline constexpr int kGainBytes = 256 * 4;

// Holds the gains of all codes in steps of 1/32 octave. The gain of the last code is 0.
template <int D>
struct TrellisGainTable {
  static __device__ __forceinline__ void build(unsigned char* table, int thread, int n_threads) {
    for (int code = thread; code < kGainBytes / 4; code += n_threads)
      reinterpret_cast<float*>(table)[code] = gain_of_code(code, 1.0F, [](float x) { return exp2f(x); });
  }
};

template <int D>
struct TrellisStrips;  // defined in trellis_strips.cuh

// Five to eight query heads need more registers than the warps of a CTA have on average. On Hopper, the
// copying warp's warpgroup gives up some of its registers. With heads of 64, a warp has enough registers.
template <int D, int Sets>
inline constexpr bool kNeedsMoreRegisters = D >= 128 && Sets == 2;
template <bool Needed>
struct TrellisRegisters {};
template <>
struct TrellisRegisters<true> {
  static constexpr int kRegisters = 224, kRegistersOfCopier = 56;
};

// TrellisPair attends to trellis-coded keys and values, for `Sets` sets of four query heads. PageWarps warps
// share each page. With `UnlikeHeads`, heads of a launch may have codes of unlike widths. Kernels then read
// the head's width for each page, and take 4 % longer if nothing else limits them. With `OnlyShort`, only
// kernels for short sequences use the pair. Their warps have up to 255 registers.
template <int D, int Sets, int PageWarps = D == 256 ? 2 * Sets : 1, bool UnlikeHeads = false,
          bool OnlyShort = false>
struct TrellisPair : TrellisRegisters<kNeedsMoreRegisters<D, Sets> && !OnlyShort> {
  using OfShort = TrellisPair<D, Sets, D == 64 ? 2 : 4, UnlikeHeads>;
  using OfShortAlone = TrellisPair<D, Sets, D == 64 ? 2 : 4, UnlikeHeads, true>;
  using OfUnlikeHeads = TrellisPair<D, Sets, PageWarps, true>;
  using Strips = TrellisStrips<D>;
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = false;
  static constexpr int kPageWarps = PageWarps;
  // The warps of a CTA keep the queries in this form. Sealed pages need no other form of the queries.
  using QueryRows = IntegerRows<D>;
  // Warps that take registers are whole warpgroups. Kernels for short sequences have kShortWarps warps.
  static constexpr int kMaxWarps = kNeedsMoreRegisters<D, Sets> ? 8 : max_consumer_warps(D);
  static constexpr bool kCaps = D == 256;
  static constexpr int kMaxGroup = kHeadsOfSet * Sets;
  static constexpr int kWarpSteps = kSteps / kPageWarps;  // steps of each page for each warp
  using Gains = TokenGains<kWarpSteps>;
  // kScratch is the number of bytes in which a warp keeps the scores of a set, and later the weights of the
  // set.
  static constexpr int kScratch = kWarpSteps * 32 * kHeadsOfSet * 4;
  static constexpr int kWarpBytes = Sets * kScratch;
  // The rounded queries follow the gains, and the memory of each warp comes last. Kernels for short sequences
  // alone keep the queries elsewhere.
  static constexpr int kQueryRowsAt = kGainBytes;
  static constexpr int kWarpsAt = kQueryRowsAt + (OnlyShort ? 0 : static_cast<int>(sizeof(QueryRows)));
  static constexpr int kTableBytes = kWarpsAt + kMaxWarps * kWarpBytes;
  static constexpr int kParts = kWarpSteps / kStepsOfPart<D>;
  // Values are read in this many passes. Each pass has only some of the channels, which limits the registers
  // for sums.
  static constexpr bool kFewPasses =
      OnlyShort || (kNeedsMoreRegisters<D, Sets> && Architecture::kWarpgroupProducts);
  static constexpr int kPasses = D == 256 ? (kFewPasses ? Sets : 4 * Sets) : kFewPasses ? 1 : Sets;

  static __device__ void build_tables(const DecodeArgs&, unsigned char* table, int, int thread,
                                      int n_threads) {
    TrellisGainTable<D>::build(table, thread, n_threads);
  }

  struct State {
    IntegerQuery<D> query[Sets];
    HeadSums<D> heads[Sets];

    template <class Part>
    __device__ State(const DecodeArgs& args, const Part& segment, int lane)
        : State(args, segment, lane, std::make_integer_sequence<int, Sets>{}) {}
    template <class Part, int... Set>
    __device__ State(const DecodeArgs& args, const Part& segment, int lane,
                     std::integer_sequence<int, Set...>)
        : query{IntegerQuery<D>(args, segment, Set * kHeadsOfSet, lane)...} {}
    __device__ State(const IntegerRows<D>& rows, int n_heads, int lane)
        : State(rows, n_heads, lane, std::make_integer_sequence<int, Sets>{}) {}
    template <int... Set>
    __device__ State(const IntegerRows<D>& rows, int n_heads, int lane, std::integer_sequence<int, Set...>)
        : query{IntegerQuery<D>(rows, Set * kHeadsOfSet, n_heads, lane)...} {}
  };

  template <class Part>
  static __device__ __forceinline__ void attend(const DecodeArgs& args, unsigned char* shared,
                                                const Part& segment, int page, const Query<D>&, int lane,
                                                RingReader& ring, State& state) {
    auto* scratch = reinterpret_cast<float4*>(shared + kWarpsAt + threadIdx.x / kLanes * (Sets * kScratch));
    store_scores(args, shared, segment, page, ring.wait(), state, lane, scratch);
    ring.release();
    const unsigned char* values = ring.wait();
    const int value_bits = UnlikeHeads ? args.bits_of(segment.head, 1) : args.value_bits;
    const unsigned char* parameters = values + value_bits * (kPageTokens * D / 8);
    const Gains gains(parameters + first_step() * 32, lane);
    PageWeights weights[Sets];
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      float4 s[kWarpSteps];
#pragma unroll
      for (int i = 0; i < kWarpSteps; ++i) s[i] = scratch[(set * kWarpSteps + i) * kLanes + lane];
      __syncwarp();
      weights[set] = weigh(s, gains, shared, lane, state.heads[set],
                           reinterpret_cast<uint2*>(scratch + set * kWarpSteps * kLanes));
    }
    __syncwarp();
    [&]<int... Pass>(std::integer_sequence<int, Pass...>) {
      (add_values<Pass>(values, value_bits, UnlikeHeads ? args.trellis_units[value_bits] : args.value_unit,
                        parameters, weights, reinterpret_cast<const uint2*>(scratch), lane, state),
       ...);
    }
    (std::make_integer_sequence<int, kPasses>{});
    ring.release();
    __syncwarp();  // the next page's scores overwrite the weights
  }

  // Moves the sums into the accumulator, whose lanes have heads 2t and 2t + 1.
  static __device__ __forceinline__ void finish(const State& state, int lane, Accumulator<D>& acc) {
    constexpr float kUnit = 16;  // 2^kWeightBits
    static_assert(kWeightBits == 4);
    const auto fetch = [&](const auto& of_set, int h) {
      const int head = lane % 4 * 2 + h;
      const int from = lane / 4 * 4 + head % kHeadsOfSet;
      float x = __shfl_sync(~0U, of_set(0), from);
      if constexpr (Sets == 2) {
        const float second = __shfl_sync(~0U, of_set(1), from);
        x = head < kHeadsOfSet ? x : second;
      }
      return x;
    };
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      acc.max[h] = fetch([&](int set) { return state.heads[set].max; }, h);
      acc.sum[h] = fetch([&](int set) { return state.heads[set].sum; }, h) * kUnit;
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
#pragma unroll
        for (int row = 0; row < 2; ++row)
          acc.out[m][2 * row + h] = fetch([&](int set) { return state.heads[set].out[m][row]; }, h) * kUnit;
      }
    }
  }

 private:
  template <class Body>
  static __device__ __forceinline__ void with_width(int bits, const Body& body) {
    if constexpr (OnlyShort)
      with_bits_in_turn(bits, body);
    else
      with_bits(bits, body);
  }
  static __device__ __forceinline__ int first_step() {
    return part_of_page<kPageWarps>() * kWarpSteps;
  }

  // Computes the queries' products with the means of a page's keys, for head t of each set.
  static __device__ __forceinline__ void mean_scores(const unsigned char* parameters, const State& state,
                                                     int lane, float (&mean)[Sets]) {
    const MeanCodes<D> codes(parameters + kTrellisMeansAt, lane);
    const float step = mean_step<D>(parameters);
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const IntegerQuery<D>& query = state.query[set];
      int sums[4] = {};
#pragma unroll
      for (int k = 0; k < D / 32; ++k) {
        const auto& of_row = codes.bytes[k];
        const std::uint32_t a[4] = {of_row[0], of_row[0], of_row[1], of_row[1]};
        mma_s8(sums, a, query.b[k][0], query.b[k][1]);
      }
      mean[set] = static_cast<float>(whole_sum(sums[0], sums[1])) * (query.factor * step);
    }
  }

  // Stores the scores of the lane's tokens for head t, [set][step][lane].
  template <class Part>
  static __device__ __forceinline__ void store_scores(const DecodeArgs& args, const unsigned char* gain_table,
                                                      const Part& segment, int page,
                                                      const unsigned char* keys, const State& state, int lane,
                                                      float4* scores) {
    const int key_bits = UnlikeHeads ? args.bits_of(segment.head, 0) : args.key_bits;
    const unsigned char* parameters = keys + key_bits * (kPageTokens * D / 8);
    float mean[Sets];
    mean_scores(parameters, state, lane, mean);
    const Gains gains(parameters + first_step() * 32, lane);
    const float key_unit = UnlikeHeads ? args.trellis_units[key_bits] : args.key_unit;
    const float unit = loudest_gain<D>(parameters) * key_unit / 2;
    float factor[Sets];
#pragma unroll
    for (int set = 0; set < Sets; ++set) factor[set] = state.query[set].factor * unit;
    const unsigned char* codes = keys;
    if constexpr (kPageWarps > 1) codes += first_step() * (key_bits * (32 * D / 8));
    with_width(key_bits, [&](auto bits) {
#pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
        int s[Sets][2 * kStepsOfPart<D>][4] = {};
        score_levels<bits.value, D, Sets>(codes + part * kPartBytes<bits.value, D>, state.query, lane, s);
#pragma unroll
        for (int i = 0; i < kStepsOfPart<D>; ++i) {
          const int step = part * kStepsOfPart<D> + i;
          const std::uint32_t codes = gains.of_step(step);
#pragma unroll
          for (int set = 0; set < Sets; ++set) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const int(&c)[4] = s[set][2 * i + j / 2];
              const auto sum = static_cast<float>(whole_sum(c[j % 2 * 2], c[j % 2 * 2 + 1]));
              x[j] = fmaf(sum * Gains::relative(gain_table, codes, j), factor[set], mean[set]);
            }
            scores[(set * kWarpSteps + step) * kLanes + lane] = make_float4(x[0], x[1], x[2], x[3]);
          }
        }
      }
    });
    if constexpr (kCaps)
      if (args.softcap_log2 > 0) cap_stored(args, lane, scores);
    if (may_be_masked(args, segment, page)) mask_stored(args, segment, page, lane, scores);
  }

  static __device__ void cap_stored(const DecodeArgs& args, int lane, float4* scores) {
#pragma unroll 1
    for (int i = 0; i < Sets * kWarpSteps; ++i) {
      float4& four = scores[i * kLanes + lane];
      float x[1][4] = {{four.x, four.y, four.z, four.w}};
      cap_scores<TrellisPair>(args, x);
      four = make_float4(x[0][0], x[0][1], x[0][2], x[0][3]);
    }
  }

  template <class Part>
  static __device__ void mask_stored(const DecodeArgs& args, const Part& segment, int page, int lane,
                                     float4* scores) {
    for (int step = 0; step < kWarpSteps; ++step) {
      for (int set = 0; set < Sets; ++set) {
        const int column = set * kHeadsOfSet + lane % 4;
        const std::uint32_t masked =
            mask_word(args, segment, page, first_step() + step, column) >> (lane / 4 * 4);
        float4& x = scores[(set * kWarpSteps + step) * kLanes + lane];
        if ((masked & 1) != 0) x.x = -INFINITY;
        if ((masked & 2) != 0) x.y = -INFINITY;
        if ((masked & 4) != 0) x.z = -INFINITY;
        if ((masked & 8) != 0) x.w = -INFINITY;
      }
    }
  }

  // Loads the weights of a step. The lane's column belongs to head g / 2 of the set, and has the high bytes
  // of weights for even g and the low bytes for odd g.
  static __device__ __forceinline__ void load_weights(const uint2* stored, int lane, StepWeights& weights) {
    const int selector = lane / 4 % 2 == 0 ? 0x7531 : 0x6420;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 four = stored[lane / 8 * 8 + lane % 4 + 4 * half];
      weights[half] = __byte_perm(four.x, four.y, selector);
    }
  }

  // Adds a page's values to the sums, for the m tiles of this pass.
  template <int Pass>
  static __device__ __forceinline__ void add_values(const unsigned char* values, int value_bits,
                                                    float value_unit, const unsigned char* parameters,
                                                    const PageWeights (&page)[Sets], const uint2* stored,
                                                    int lane, State& state) {
    constexpr int kTiles = D / 16 / kPasses;
    constexpr int kFirst = Pass * kTiles;
    int sums[Sets][kTiles][4] = {};
    const unsigned char* codes = values;
    if constexpr (kPageWarps > 1) codes += first_step() * (value_bits * (32 * D / 8));
    with_width(value_bits, [&](auto bits) {
#pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
        StepWeights weights[Sets][kStepsOfPart<D>];
#pragma unroll
        for (int set = 0; set < Sets; ++set) {
#pragma unroll
          for (int i = 0; i < kStepsOfPart<D>; ++i)
            load_weights(stored + set * (kScratch / 8) + (part * kStepsOfPart<D> + i) * 32, lane,
                         weights[set][i]);
        }
        mix_levels<bits.value, D, Sets, kFirst>(codes + part * kPartBytes<bits.value, D>, weights, lane,
                                                sums);
      }
    });
    const float unit = loudest_gain<D>(parameters) * value_unit / (2 * 32767);
    const float step = mean_step<D>(parameters);
    const auto* means =
        reinterpret_cast<const std::uint32_t*>(parameters + kTrellisMeansAt + lane / 4 * (D / 8));
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const std::uint32_t four = means[(kFirst + m) / 2] ^ kSignBits;
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float mean = float_from_byte(four, (kFirst + m) % 2 * 2 + row, 128);
          const auto sum = static_cast<float>(whole_sum(sums[set][m][2 * row], sums[set][m][2 * row + 1]));
          const float of_page = fmaf(sum, unit, mean * (page[set].total * step));
          float& out = state.heads[set].out[kFirst + m][row];
          out = fmaf(out, page[set].keep, of_page * page[set].share);
        }
      }
    }
  }
};

}  // namespace kvant::cuda
