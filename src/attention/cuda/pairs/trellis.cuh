// tcq1 to tcq5 keys and values: a token's channels are a circular stream of B bits a value, and the level of
// a value is looked up by the 8 bits that end with its own. A lane decodes a stretch of a token's stream; the
// bits before it are the last ones of the lane that holds the channels before (of the last lane, for the
// first). One table serves both sides: entry e of the keys' levels lies for lane l at byte e * 256 + l * 4,
// and of the values' levels 128 bytes further, so that one permute of bytes makes an address of a state.
#pragma once

#include "attention/cuda/pairs/look_up.cuh"

namespace kvant::cuda {

inline constexpr int kStates = 256;
inline constexpr int kStateStride = 256;
inline constexpr int kValueLevels = 128;

template <int Bits, int D>
struct TrellisPage {
  static constexpr int kCodes = kTokens * D * Bits / 8;
  static constexpr int kPageBytes = round_up_16(kCodes + kTokens + 2 * D + 4);
};

// The gains of this lane's tokens: of 8-bit codes, in steps of 1/32 octave below the loudest.
struct TokenGains {
  std::uint32_t codes[kTokenTiles / 2];  // of tiles 2 i and 2 i + 1: rows g, g + 8, g, g + 8
  float log2_loudest;

  // parameters: gains, means, loudest; unit: of the levels.
  template <int D>
  static __device__ __forceinline__ TokenGains load(const unsigned char* parameters, float unit, int lane) {
    TokenGains gains;
#pragma unroll
    for (int i = 0; i < kTokenTiles / 2; ++i)
      gains.codes[i] = *reinterpret_cast<const std::uint32_t*>(parameters + i * 32 + lane / 4 * 4);
    gains.log2_loudest = log2f(*reinterpret_cast<const float*>(parameters + kTokens + 2 * D) * unit);
    return gains;
  }
  // Of tiles 2 i and 2 i + 1, where i is not known when this is compiled.
  __device__ __forceinline__ std::uint32_t of_pair(int i) const {
    const std::uint32_t low = i == 0 ? codes[0] : codes[1];
    const std::uint32_t high = i == 2 ? codes[2] : codes[3];
    return i < 2 ? low : high;
  }
  __device__ __forceinline__ float of_row(std::uint32_t pair, int row) const {
    const float code = float_from_byte(pair, row, 0);
    return code == 255 ? 0 : exp2_fast(fmaf(code, -1.0F / 32, log2_loudest));
  }
};

// Words of a lane's stream that are decoded together: `Streams` streams of `Values` values each.
template <int Bits, int Values, int Streams>
struct TrellisWords {
  static constexpr int kWords = Values * Streams * Bits / 32;
  static_assert(kWords % 4 == 0);
  std::uint32_t words[kWords];
  std::uint32_t before[Streams];  // ends with the bits before a stream

  // neighbour: the lane that holds the values before this lane's.
  __device__ __forceinline__ void load(const uint4* pieces, int neighbour) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 piece = pieces[i * kLanes];
      words[4 * i] = piece.x;
      words[4 * i + 1] = piece.y;
      words[4 * i + 2] = piece.z;
      words[4 * i + 3] = piece.w;
    }
#pragma unroll
    for (int s = 0; s < Streams; ++s) {
      const int end = (s + 1) * Values * Bits;  // of the neighbour's stream; its last 8 bits are in one word,
      const int word = (end - 1) / 32;          // or the stream would end within a byte
      const std::uint32_t last = __shfl_sync(~0U, words[word], neighbour);
      before[s] = last << (word * 32 + 32 - end);
    }
  }

  // The offset in the table of the state of value i of stream s. A state is a byte of the words, or of the
  // words shifted by 1 to 7 bits, which states that lie a multiple of 8 bits apart share.
  __device__ __forceinline__ std::uint32_t state(int s, int i, std::uint32_t lane_offset) const {
    const int begin = s * Values * Bits;
    const int first = begin + (i + 1) * Bits - 8;  // bit, of the state
    if (first < begin) {
      // The stream's first bits above the last ones before it.
      const int word = begin / 32;
      const std::uint32_t own = begin % 32 == 0 ? words[word] : words[word] >> (begin % 32);
      return offset_of(__funnelshift_r(before[s], own, 32 + (first - begin)), 0, lane_offset);
    }
    const int shift = first % 8;
    const int word = first / 32;
    const std::uint32_t next = word + 1 < kWords ? words[word + 1] : 0;
    return offset_of(shift == 0 ? words[word] : __funnelshift_r(words[word], next, shift), first % 32 / 8,
                     lane_offset);
  }

 private:
  static __device__ __forceinline__ std::uint32_t offset_of(std::uint32_t states, int byte,
                                                            std::uint32_t lane_offset) {
    return __byte_perm(states, lane_offset, 0x5504 | byte << 4);
  }
};

__device__ __forceinline__ std::uint32_t look_up_2(const unsigned char* table, std::uint32_t offset) {
  return *reinterpret_cast<const std::uint16_t*>(table + offset);
}

// Two levels in one register. A multiplication, where a permute would do, because permutes and shifts are
// what bounds these kernels; high_half is 2^16.
__device__ __forceinline__ std::uint32_t join_levels(std::uint32_t low, std::uint32_t high,
                                                     std::uint32_t high_half) {
  return high * high_half + low;
}

// Tiles of tokens that are decoded together: whole pieces of the streams, whatever their bits.
template <int D>
inline constexpr int kTilesTogether = 256 / D;

// s += the products of the queries with the levels of keys, for a part of a page.
template <int Bits, int D>
__device__ __forceinline__ void score_levels(const unsigned char* table, const unsigned char* codes,
                                             const Query<D>& query, std::uint32_t high_half, int lane,
                                             float (&s)[kTilesTogether<D>][4]) {
  TrellisWords<Bits, D / 4, 2 * kTilesTogether<D>> words;
  words.load(reinterpret_cast<const uint4*>(codes) + lane, lane / 4 * 4 + (lane + 3) % 4);
  const std::uint32_t lane_offset = lane * 4;
#pragma unroll
  for (int m = 0; m < kTilesTogether<D>; ++m) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      std::uint32_t a[4];
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) {
        const int stream = 2 * m + reg % 2;
        const int value = 4 * k + reg / 2 * 2;
        a[reg] = join_levels(look_up_2(table, words.state(stream, value, lane_offset)),
                             look_up_2(table, words.state(stream, value + 1, lane_offset)), high_half);
      }
      mma_f16(s[m], a[0], a[1], a[2], a[3], query.b[k][0], query.b[k][1]);
    }
  }
}

// out += weights times the levels of values, likewise.
template <int Bits, int D>
__device__ __forceinline__ void mix_levels(const unsigned char* table, const unsigned char* codes,
                                           const std::uint32_t (&weights)[kTilesTogether<D>][2],
                                           std::uint32_t high_half, int lane, float (&out)[D / 16][4]) {
  TrellisWords<Bits, D / 8, 4 * kTilesTogether<D>> words;
  words.load(reinterpret_cast<const uint4*>(codes) + lane, (lane + 28) % 32);
  const std::uint32_t lane_offset = lane * 4 + kValueLevels;
#pragma unroll
  for (int k = 0; k < kTilesTogether<D>; ++k) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      std::uint32_t a[4];
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) {
        const int stream = 4 * k + reg / 2 * 2;
        const int value = 2 * m + reg % 2;
        a[reg] = join_levels(look_up_2(table, words.state(stream, value, lane_offset)),
                             look_up_2(table, words.state(stream + 1, value, lane_offset)), high_half);
      }
      mma_f16(out[m], a[0], a[1], a[2], a[3], weights[k][0], weights[k][1]);
    }
  }
}

// The weights' sums over a page's tokens, which the means of its values are to be multiplied by.
struct PageTotal {
  float of_head[2] = {0, 0};
  __device__ __forceinline__ void scale(int h, float factor) { of_head[h] *= factor; }
};

template <int D>
struct TrellisPair {
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = false;
  static constexpr int kTableBytes = kStates * kStateStride;
  static constexpr int kParts = kTokenTiles / kTilesTogether<D>;

  static __device__ void build_tables(const DecodeArgs& args, unsigned char* table, int, int thread,
                                      int n_threads) {
    for (int i = thread; i < kTableBytes / 4; i += n_threads) {
      const int state = i / (kStateStride / 4);
      const bool value = i % (kStateStride / 4) >= kValueLevels / 4;
      reinterpret_cast<std::uint32_t*>(table)[i] =
          pack_half2(value ? args.value_levels[state] : args.key_levels[state], 0);
    }
  }

  // A page, a few tiles at a time in a loop that is not unrolled: unrolled, its code would not stay in the
  // instruction cache. Levels enter `out` without their unit, which `finish` multiplies.
  static __device__ __forceinline__ void attend(const DecodeArgs& args, const unsigned char* table,
                                                const Segment& segment, int page, const Query<D>& query,
                                                int lane, RingReader& ring, Accumulator<D>& acc) {
    constexpr int kTiles = kTilesTogether<D>;
    const unsigned char* key_parameters = ring.wait();
    const unsigned char* value_parameters = key_parameters + args.key_bytes - args.key_codes;
    float mean[4] = {};
    const auto* key_means = reinterpret_cast<const uint2*>(key_parameters + kTokens + lane % 4 * (D / 2));
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint2 x = key_means[k];
      mma_f16(mean, x.x, x.x, x.y, x.y, query.b[k][0], query.b[k][1]);
    }
    std::uint32_t value_means[D / 16];
    const auto* stored =
        reinterpret_cast<const std::uint32_t*>(value_parameters + kTokens + lane / 4 * (D / 4));
#pragma unroll
    for (int m = 0; m < D / 16; ++m) value_means[m] = stored[m];
    const auto key_gains = TokenGains::load<D>(key_parameters, args.key_unit, lane);
    const auto value_gains = TokenGains::load<D>(value_parameters, 1, lane);
    ring.release();
    PageTotal total;
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      float s[kTiles][4] = {};
      const unsigned char* keys = ring.wait();
      const unsigned char* values = keys + args.key_codes / kParts;
      switch (args.key_bits) {
        case 1:
          score_levels<1, D>(table, keys, query, args.high_half, lane, s);
          break;
        case 2:
          score_levels<2, D>(table, keys, query, args.high_half, lane, s);
          break;
        case 3:
          score_levels<3, D>(table, keys, query, args.high_half, lane, s);
          break;
        case 4:
          score_levels<4, D>(table, keys, query, args.high_half, lane, s);
          break;
        default:
          score_levels<5, D>(table, keys, query, args.high_half, lane, s);
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const std::uint32_t codes = key_gains.of_pair((part * kTiles + m) / 2);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float gain = key_gains.of_row(codes, m % 2 * 2 + row);
#pragma unroll
          for (int h = 0; h < 2; ++h)
            s[m][2 * row + h] = fmaf(s[m][2 * row + h], gain, mean[h]) * query.factor[h];
        }
      }
      if (may_be_masked(args, page)) mask_scores(args, segment, page, part * kTiles / 2, lane, s);
      const float2 sums = soften<D>(s, acc, total);
      total.of_head[0] += sums.x;
      total.of_head[1] += sums.y;
      std::uint32_t weights[kTiles][2];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const std::uint32_t codes = value_gains.of_pair((part * kTiles + m) / 2);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float gain = value_gains.of_row(codes, m % 2 * 2 + row);
          weights[m][row] = transpose_8x8(pack_half2(s[m][2 * row] * gain, s[m][2 * row + 1] * gain));
        }
      }
      switch (args.value_bits) {
        case 1:
          mix_levels<1, D>(table, values, weights, args.high_half, lane, acc.out);
          break;
        case 2:
          mix_levels<2, D>(table, values, weights, args.high_half, lane, acc.out);
          break;
        case 3:
          mix_levels<3, D>(table, values, weights, args.high_half, lane, acc.out);
          break;
        case 4:
          mix_levels<4, D>(table, values, weights, args.high_half, lane, acc.out);
          break;
        default:
          mix_levels<5, D>(table, values, weights, args.high_half, lane, acc.out);
      }
      ring.release();
    }
    const float share[2] = {sum_over_tokens(total.of_head[0]) / args.value_unit,
                            sum_over_tokens(total.of_head[1]) / args.value_unit};
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      const float2 x = unpack_half2(value_means[m]);
#pragma unroll
      for (int i = 0; i < 4; ++i) acc.out[m][i] = fmaf(i < 2 ? x.x : x.y, share[i & 1], acc.out[m][i]);
    }
  }

  struct Value {
    using State = NoState;
    static __device__ __forceinline__ void finish(const DecodeArgs& args, float (&out)[D / 16][4],
                                                  const State&) {
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][i] *= args.value_unit;
      }
    }
  };
};

}  // namespace kvant::cuda
