// Attends to keys and values tcq1 to tcq6 by warps that share the decoding of pages (shared_decoding.cuh).
// Here levels are half-precision numbers, because products with 15-bit integers would need twice as many
// columns. Each number is the sum of the level's two bytes, plus one. The sums of queries and weights serve
// to subtract the ones again.
#pragma once

#include "device/cuda/decode/shared_decoding.cuh"
#include "device/cuda/pairs/strips.cuh"
#include "device/cuda/pairs/trellis.cuh"

namespace kvant::cuda {

// Computes twice the levels plus one for value i of a group's four columns. `low` gets the first two columns,
// and `high` gets the other two.
template <int Bits, int Groups, int Rows>
__device__ __forceinline__ void half_levels(const ColumnRows<Bits, Groups, Rows>& columns, int group, int i,
                                            std::uint32_t& low, std::uint32_t& high) {
  constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  // With a byte below it, 0x64 makes the half-precision number 1024 plus the byte.
  constexpr std::uint32_t k1024 = 0x64646464U;
  constexpr std::uint32_t kMixed = each_byte(0xff << kCode.mix & 0xff);
  const std::uint32_t state = columns.states(group, i), for_mix = columns.shifted(group, i, kCode.mix);
  // `upper` becomes the mixed state + 128, and `lower` becomes 127 - the folded state. If only the sign is
  // mixed, `upper` takes its sign from the shifted state.
  std::uint32_t upper, lower;
  if constexpr (kMixed == kSignBits && (kCode.fold_mask & 0x80) != 0) {
    upper = state ^ (~for_mix & kSignBits);
    lower = upper;
  } else {
    lower = state ^ (for_mix & kMixed);
    upper = lower ^ kSignBits;
  }
  lower = select_bits<each_byte(kCode.fold_mask)>(columns.shifted(group, i, kCode.fold), lower) ^ ~kSignBits;
  low = subtract_half2(__byte_perm(upper, k1024, 0x4140), __byte_perm(lower, k1024, 0x4140));
  high = subtract_half2(__byte_perm(upper, k1024, 0x4342), __byte_perm(lower, k1024, 0x4342));
}

// Makes the compiler load values again instead of keeping them in registers.
__device__ __forceinline__ void forget_loads() {
  asm volatile("" ::: "memory");
}
// Hides from the compiler that a number is the same for all pages. Otherwise the compiler would compute
// everything that depends on the number in advance and keep it.
__device__ __forceinline__ int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// TrellisKeyStrips scores keys of tcq1 to tcq6. Channels i, 8 + i, 16 + i and 24 + i of a lane's 32 channels
// belong to contraction tile i, because these channels have the same place in the four columns of the codes.
template <int D>
struct TrellisKeyStrips {
  static_assert(D == 128);
  static constexpr bool kNeedsSums = true;
  static constexpr QueryOrder kOrder = QueryOrder::columns;

  static __device__ __forceinline__ Query<D> arrange(const Query<D>& query) {
    Query<D> arranged = query;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int half = i % 4 / 2, selector = i % 2 == 0 ? 0x5410 : 0x7632;
      arranged.b[i][0] = __byte_perm(query.b[i / 4][half], query.b[2 + i / 4][half], selector);
      arranged.b[i][1] = __byte_perm(query.b[4 + i / 4][half], query.b[6 + i / 4][half], selector);
    }
    return arranged;
  }
  static __device__ __forceinline__ Query<D> rearrange(const Query<D>& arranged) {
    Query<D> query = arranged;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int column = k / 2, selector = column % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = k % 2 * 4 + 2 * half;
        query.b[k][half] = __byte_perm(arranged.b[i][column / 2], arranged.b[i + 1][column / 2], selector);
      }
    }
    return query;
  }

  template <int Sets, int Tiles>
  static __device__ __forceinline__ void score(const DecodeArgs& args, const unsigned char* gain_table,
                                               const unsigned char* page, int first_tile,
                                               const SharedQueries<D, Sets, kOrder>& queries, int lane,
                                               SetSums<Sets, Tiles>& s) {
    const unsigned char* parameters = page + args.key_bits * (kPageTokens * D / 8);
    ColumnSums<Sets> mean;
    {
      const MeanCodes<D> means(parameters + kTrellisMeansAt, lane);
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const std::uint32_t four = means.bytes[k / 2][k % 2] ^ kSignBits;
        const std::uint32_t x = half2_from_bytes(four, Bytes::first, 128);
        const std::uint32_t y = half2_from_bytes(four, Bytes::last, 128);
#pragma unroll
        for (int pair = 0; pair < Sets / 2; ++pair) mean.add(pair, queries.rows(k, pair, lane), x, y);
      }
    }
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const float2 sums = queries.sums(set, lane);
#pragma unroll
      for (auto& tile : s[set]) {
        tile[0] = tile[2] = -sums.x;
        tile[1] = tile[3] = -sums.y;
      }
    }
    forget_loads();
    with_bits(args.key_bits, [&](auto bits) {
#pragma unroll
      for (int part = 0; part < Tiles / 2; ++part)
        score_part<bits.value, Sets>(page + (first_tile / 2 + part) * kPartBytes<bits.value, D>, queries,
                                     2 * part, lane, s);
    });
    const TokenGains<Tiles / 2> gains(parameters + first_tile * 16, lane);
    const float unit = loudest_gain<D>(parameters) * args.key_unit / 2;
    const float step = mean_step<D>(parameters);
    float gain[Tiles][2];
#pragma unroll
    for (int m = 0; m < Tiles; ++m) {
#pragma unroll
      for (int row = 0; row < 2; ++row)
        gain[m][row] = unit * gains.relative(gain_table, gains.codes[m / 2], m % 2 * 2 + row);
    }
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const float2 factors = queries.factors(set, lane);
      const float factor[2] = {factors.x, factors.y};
      const float offset[2] = {mean.of(set, 0, lane) * (factor[0] * step),
                               mean.of(set, 1, lane) * (factor[1] * step)};
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s[set][m][i] = fmaf(s[set][m][i], factor[i & 1] * gain[m][i / 2], offset[i & 1]);
      }
    }
  }

 private:
  // Adds the products of queries with 32 tokens to the tokens' scores, in two tiles from tile `to` on.
  template <int Bits, int Sets, int Tiles>
  static __device__ __forceinline__ void score_part(const unsigned char* codes,
                                                    const SharedQueries<D, Sets, kOrder>& queries, int to,
                                                    int lane, SetSums<Sets, Tiles>& s) {
    const auto columns = key_columns<Bits, D>(codes, lane);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int token = 0; token < 4; ++token)
        half_levels(columns, token, k, a[token / 2][token % 2], a[token / 2][2 + token % 2]);
#pragma unroll
      for (int pair = 0; pair < Sets / 2; ++pair) {
        const uint4 q = queries.columns(k, pair, lane);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_f16(s[2 * pair][to + m], a[m][0], a[m][1], a[m][2], a[m][3], q.x, q.y);
          mma_f16(s[2 * pair + 1][to + m], a[m][0], a[m][1], a[m][2], a[m][3], q.z, q.w);
        }
      }
    }
  }
};

// Holds the gains of a warp's tokens and, in the same unit, the step of the means of a page's channels.
template <int Tiles>
struct GainedTokens {
  std::uint32_t gains[Tiles];  // gains of rows g and g + 8, divided by `unit`
  // Products are half-precision numbers, so the unit differs from 1 if the numbers are far from 1.
  float step, unit;

  // Reads the gains of the warp's tokens. mean_step is the step of the means, in units of the numbers that
  // the gains multiply.
  __device__ __forceinline__ GainedTokens(const unsigned char* gain_table, const unsigned char* codes,
                                          float loudest, float mean_step, int lane) {
    constexpr int kSmallest = -8, kLargest = 6;
    constexpr float kTotal = 16;  // largest ratio of the sum of a lane's weights to the largest weight
    const float largest = fmaxf(loudest, kTotal * mean_step);
    const int exponent = min(max((__float_as_int(largest) >> 23) - 127, -100), 100);
    unit = exponent < kSmallest || exponent > kLargest ? __int_as_float((127 + exponent) << 23) : 1;
    const float inverse = inverse_unit();
    step = mean_step * inverse;
    const TokenGains<Tiles / 2> of_tokens(codes, lane);
#pragma unroll
    for (int m = 0; m < Tiles; ++m) {
      float of_rows[2];
#pragma unroll
      for (int row = 0; row < 2; ++row)
        of_rows[row] =
            loudest * inverse * of_tokens.relative(gain_table, of_tokens.codes[m / 2], m % 2 * 2 + row);
      gains[m] = pack_half2(of_rows[0], of_rows[1]);
    }
  }
  __device__ __forceinline__ float inverse_unit() const {
    return __int_as_float((254 << 23) - __float_as_int(unit));
  }
  __device__ __forceinline__ float2 addends(int tile) const {
    const float2 of_rows = unpack_half2(gains[tile]);
    return {of_rows.x * unit, of_rows.y * unit};
  }
  __device__ __forceinline__ std::uint32_t multiply(int tile, int half, std::uint32_t weights) const {
    return multiply_half2(weights, __byte_perm(gains[tile], 0, half == 0 ? 0x1010 : 0x3232));
  }
  __device__ __forceinline__ std::uint32_t of_total(float first, float second) const {
    return pack_half2(first * step, second * step);
  }
};

// Holds the codes of 2 * Tiles neighbouring values of each of a lane's channels, for four tokens.
template <int Bits, int Tiles>
struct StripColumns : ColumnRows<Bits, 1, (2 * Tiles * Bits + 7) / 8> {
  static constexpr int kBits = 2 * Tiles * Bits;
  using Rows = ColumnRows<Bits, 1, (kBits + 7) / 8>;
  using Rows::before;
  using Rows::words;

  // Loads one strip of channels for one of the page's 8 groups of tokens. A group has four tokens for each t.
  // A page has 128 / (16 * Tiles) strips.
  __device__ __forceinline__ StripColumns(const unsigned char* codes, int group, int strip, int lane) {
    constexpr int kRows = 2 * Bits;  // rows of the columns of a group
    // kTogether is the number of groups that form whole pieces. The pattern of addresses repeats after these
    // groups.
    constexpr int kTogether = kRows % 4 == 0 ? 1 : 2;
    const unsigned char* pieces = codes + group / kTogether * (kTogether * kRows / 4 * kLanes * 16);
    const int of_group = strip * kBits / 8;
    const int first = group % kTogether * kRows + of_group;
    // A lane's first channel follows the last channel of the previous lane.
    before[0] = word(pieces, of_group == 0 ? first + kRows - 1 : first - 1,
                     of_group == 0 ? (lane + 28) % kLanes : lane);
#pragma unroll
    for (int row = 0; row < Rows::kRows; ++row) words[row] = word(pieces, first + row, lane);
    if constexpr (kBits % 8 != 0) {  // every second strip begins within a row
      static_assert(kBits % 8 == 4);
      if (strip % 2 != 0) {
        before[0] = join_bytes<4>(before[0], words[0]);
#pragma unroll
        for (int row = 0; row < Rows::kRows; ++row)
          words[row] = join_bytes<4>(words[row], row + 1 < Rows::kRows ? words[row + 1] : 0);
      }
    }
  }

 private:
  static __device__ __forceinline__ std::uint32_t word(const unsigned char* pieces, unsigned at, int lane) {
    return *reinterpret_cast<const std::uint32_t*>(pieces + (at / 4 * kLanes + lane) * 16 + at % 4 * 4);
  }
};

template <int D>
struct TrellisValueStrips {
  static constexpr bool kHasAddends = true, kHasTotals = true;

  template <int Tiles>
  struct Tokens : GainedTokens<Tiles> {
    __device__ __forceinline__ Tokens(const DecodeArgs& args, const unsigned char* gain_table,
                                      const unsigned char* page, int first_tile, int lane)
        : GainedTokens<Tiles>(gain_table, parameters_of(args, page) + first_tile * 16,
                              loudest_gain<D>(parameters_of(args, page)),
                              mean_step<D>(parameters_of(args, page)) * 2 / args.value_unit, lane) {}
  };

  // Returns the row of tokens that the lane has. Each t has tokens 4t .. 4t + 3 of every 16 tokens.
  static __device__ __forceinline__ TokenRow row_of(int first_tile, int tile, int half, int lane) {
    const int g = lane / 4;
    return {first_tile + tile / 2 * 2 + g / 4, tile % 2, g % 4 * 2 + half};
  }

  template <int Sets, int Tiles>
  static __device__ __forceinline__ void mix(const DecodeArgs& args, const unsigned char*,
                                             const unsigned char* page, int first_tile,
                                             const SharedWeights<Sets, kHasTotals>& weights, int lane,
                                             SetSums<Sets, Tiles>& out) {
    add_means(parameters_of(args, page), first_tile, weights, lane, out);
    const int strip = anew(first_tile / Tiles);
    with_bits(args.value_bits, [&](auto bits) {
#pragma unroll
      for (int k = 0; k < kTokenTiles; ++k) {
        const StripColumns<bits.value, Tiles> columns(page, k, strip, lane);
        const WeightsOfSets<Sets> of_tile(weights, k, lane);
#pragma unroll
        for (int m = 0; m < Tiles; ++m) {
          std::uint32_t a[4];
#pragma unroll
          for (int row = 0; row < 2; ++row) half_levels(columns, 0, 2 * m + row, a[row], a[2 + row]);
          of_tile.multiply(a[0], a[1], a[2], a[3], m, out);
        }
      }
    });
  }

  static __device__ __forceinline__ void finish(const DecodeArgs& args, float (&out)[D / 16][4],
                                                const float (&addend)[2]) {
#pragma unroll
    for (auto& tile : out) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[i] = (tile[i] - addend[i & 1]) * (args.value_unit / 2);
    }
  }

 private:
  static __device__ __forceinline__ const unsigned char* parameters_of(const DecodeArgs& args,
                                                                       const unsigned char* page) {
    return page + args.value_bits * (kPageTokens * D / 8);
  }

  // Adds the means of channels times the sums of weights.
  template <int Sets, int Tiles>
  static __device__ __forceinline__ void add_means(const unsigned char* parameters, int first_tile,
                                                   const SharedWeights<Sets, kHasTotals>& weights, int lane,
                                                   SetSums<Sets, Tiles>& out) {
    const auto* means =
        reinterpret_cast<const std::uint32_t*>(parameters + kTrellisMeansAt + lane / 4 * (D / 8));
#pragma unroll
    for (int m = 0; m < Tiles; ++m) {
      const std::uint32_t four = means[(first_tile + m) / 2] ^ kSignBits;
      std::uint32_t a[4];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const std::uint32_t twice = __byte_perm(four, 0, (m % 2 * 2 + row) * 0x1111);
        a[row] = a[2 + row] = half2_from_bytes(twice, Bytes::first, 128);
      }
#pragma unroll
      for (int tile = 0; tile < Sets / 2; ++tile)
        WeightsOfSets<Sets>(weights, kTokenTiles + tile, lane).multiply(a[0], a[1], a[2], a[3], m, out);
    }
  }
};

template <int D>
struct TrellisStrips {
  static constexpr int kMixedParts = 0;
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = false;
  static constexpr int kTableBytes = kGainBytes;
  using Key = TrellisKeyStrips<D>;
  using Value = TrellisValueStrips<D>;

  static __device__ void build_tables(const DecodeArgs&, unsigned char* table, int, int thread,
                                      int n_threads) {
    TrellisGainTable<D>::build(table, thread, n_threads);
  }
};

}  // namespace kvant::cuda
