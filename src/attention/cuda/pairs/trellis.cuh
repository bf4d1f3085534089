// tcq1 to tcq5 keys and values: a token's channels are a circular stream of B bits a value, and the level of a
// value is looked up by the 8 bits that end with its own. A lane decodes a stretch of a token's stream; the
// bits before it are the last ones of the lane that holds the channels before (of the last lane, for the
// first). One table serves both sides: entry e of the keys' levels lies for lane l at byte e * 256 + l * 4, and
// of the values' levels 128 bytes further, so that one permute of bytes makes an address of a state.
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

template <int D>
struct TrellisParameters {
  const unsigned char* gains;  // behind the codes

  __device__ __forceinline__ const unsigned char* means() const { return gains + kTokens; }
  __device__ __forceinline__ float loudest() const {
    return *reinterpret_cast<const float*>(gains + kTokens + 2 * D);
  }
  // Of row g and row g + 8 of a tile.
  __device__ __forceinline__ float2 gain(int tile, float log2_loudest, int lane) const {
    const auto codes = *reinterpret_cast<const std::uint16_t*>(gains + tile / 2 * 32 + lane / 4 * 4 + tile % 2 * 2);
    return {of_code(codes, 0, log2_loudest), of_code(codes, 1, log2_loudest)};
  }

 private:
  static __device__ __forceinline__ float of_code(std::uint32_t codes, int i, float log2_loudest) {
    const float code = float_from_byte(codes, i, 0);
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
    return offset_of(shift == 0 ? words[word] : __funnelshift_r(words[word], next, shift), first % 32 / 8, lane_offset);
  }

 private:
  static __device__ __forceinline__ std::uint32_t offset_of(std::uint32_t states, int byte, std::uint32_t lane_offset) {
    return __byte_perm(states, lane_offset, 0x5504 | byte << 4);
  }
};

__device__ __forceinline__ std::uint32_t look_up_2(const unsigned char* table, std::uint32_t offset) {
  return *reinterpret_cast<const std::uint16_t*>(table + offset);
}

// Two levels in one register. A multiplication, where a permute would do, because permutes and shifts are what
// bounds these kernels; high_half is 2^16.
__device__ __forceinline__ std::uint32_t join_levels(std::uint32_t low, std::uint32_t high, std::uint32_t high_half) {
  return high * high_half + low;
}

// Calls visit(k_tile, m_tile, a0, a1, a2, a3) for all fragments of keys.
template <int Bits, int D, class Visit>
__device__ __forceinline__ void for_each_key_fragment(const unsigned char* table, const unsigned char* codes, int lane,
                                                      std::uint32_t high_half, const Visit& visit) {
  constexpr int kValues = D / 4;
  constexpr int kTogether = 64 / kValues;  // tiles: whole pieces of any number of bits
  using Words = TrellisWords<Bits, kValues, 2 * kTogether>;
  const auto* pieces = reinterpret_cast<const uint4*>(codes) + lane;
  const int neighbour = lane / 4 * 4 + (lane + 3) % 4;
  const std::uint32_t lane_offset = lane * 4;
#pragma unroll
  for (int first = 0; first < kTokenTiles; first += kTogether) {
    Words words;
    words.load(pieces + first / kTogether * Words::kWords / 4 * kLanes, neighbour);
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
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
        visit(k, first + m, a[0], a[1], a[2], a[3]);
      }
    }
  }
}

// ... and of values.
template <int Bits, int D, class Visit>
__device__ __forceinline__ void for_each_value_fragment(const unsigned char* table, const unsigned char* codes,
                                                        int lane, std::uint32_t high_half,
                                                        const Visit& visit) {
  constexpr int kValues = D / 8;
  constexpr int kTogether = 32 / kValues;
  using Words = TrellisWords<Bits, kValues, 4 * kTogether>;
  const auto* pieces = reinterpret_cast<const uint4*>(codes) + lane;
  const int neighbour = (lane + 28) % 32;
  const std::uint32_t lane_offset = lane * 4 + kValueLevels;
#pragma unroll
  for (int first = 0; first < kTokenTiles; first += kTogether) {
    Words words;
    words.load(pieces + first / kTogether * Words::kWords / 4 * kLanes, neighbour);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
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
        visit(first + k, m, a[0], a[1], a[2], a[3]);
      }
    }
  }
}

template <int Bits, int D>
__device__ __forceinline__ void score_trellis(const DecodeArgs& args, const unsigned char* table,
                                              const unsigned char* page, const Query<D>& query, int lane, Scores& s) {
  const TrellisParameters<D> parameters{page + TrellisPage<Bits, D>::kCodes};
  const auto* means = reinterpret_cast<const uint2*>(parameters.means() + lane % 4 * (D / 2));
  float mean[4] = {};
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const uint2 x = means[k];
    mma_f16(mean, x.x, x.x, x.y, x.y, query.b[k][0], query.b[k][1]);
  }
  clear(s);
  for_each_key_fragment<Bits, D>(table, page, lane, args.high_half, [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
    mma_f16(s[m], a0, a1, a2, a3, query.b[k][0], query.b[k][1]);
  });
  const float log2_loudest = log2f(parameters.loudest() * args.key_unit);
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    const float2 gain = parameters.gain(m, log2_loudest, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[m][i] = fmaf(s[m][i], i < 2 ? gain.x : gain.y, mean[i & 1]) * query.factor[i & 1];
  }
}

template <int Bits, int D>
__device__ __forceinline__ void mix_trellis(const DecodeArgs& args, const unsigned char* table, const unsigned char* page,
                                            const Scores& p, int lane, float (&out)[D / 16][4]) {
  const TrellisParameters<D> parameters{page + TrellisPage<Bits, D>::kCodes};
  // Levels reach 127; gains enter the weights without the levels' unit, which `finish` multiplies.
  const float log2_loudest = log2f(parameters.loudest());
  Weights weights;
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const float2 gain = parameters.gain(tile, log2_loudest, lane);
    weights.b[tile][0] = transpose_8x8(pack_half2(p[tile][0] * gain.x, p[tile][1] * gain.x));
    weights.b[tile][1] = transpose_8x8(pack_half2(p[tile][2] * gain.y, p[tile][3] * gain.y));
  }
  for_each_value_fragment<Bits, D>(table, page, lane, args.high_half, [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
    mma_f16(out[m], a0, a1, a2, a3, weights.b[k][0], weights.b[k][1]);
  });
}

template <int D>
struct TrellisKey {
  static __device__ __forceinline__ void score(const DecodeArgs& args, const unsigned char* table,
                                               const unsigned char* page, const Query<D>& query, int lane,
                                               Scores& s) {
    switch (args.key_bits) {
      case 1: return score_trellis<1, D>(args, table, page, query, lane, s);
      case 2: return score_trellis<2, D>(args, table, page, query, lane, s);
      case 3: return score_trellis<3, D>(args, table, page, query, lane, s);
      case 4: return score_trellis<4, D>(args, table, page, query, lane, s);
      default: return score_trellis<5, D>(args, table, page, query, lane, s);
    }
  }
};

template <int D>
struct TrellisValue {
  using State = NoState;

  static __device__ __forceinline__ void mix(const DecodeArgs& args, const unsigned char* table,
                                             const unsigned char* page, const Scores& p, float2 sums, int lane,
                                             float (&out)[D / 16][4], State&) {
    // The means' share, in units of the levels.
    const float total[2] = {sum_over_tokens(sums.x) / args.value_unit, sum_over_tokens(sums.y) / args.value_unit};
    const int codes = kTokens * D / 8 * args.value_bits;
    const auto* means = reinterpret_cast<const std::uint32_t*>(
        TrellisParameters<D>{page + codes}.means() + lane / 4 * (D / 4));
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      const float2 mean = unpack_half2(means[m]);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] = fmaf(i < 2 ? mean.x : mean.y, total[i & 1], out[m][i]);
    }
    switch (args.value_bits) {
      case 1: return mix_trellis<1, D>(args, table, page, p, lane, out);
      case 2: return mix_trellis<2, D>(args, table, page, p, lane, out);
      case 3: return mix_trellis<3, D>(args, table, page, p, lane, out);
      case 4: return mix_trellis<4, D>(args, table, page, p, lane, out);
      default: return mix_trellis<5, D>(args, table, page, p, lane, out);
    }
  }

  static __device__ __forceinline__ void finish(const DecodeArgs& args, float (&out)[D / 16][4], const State&) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] *= args.value_unit;
    }
  }
};

template <int D>
struct TrellisPair {
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = false;
  static constexpr int kTableBytes = kStates * kStateStride;
  using Key = TrellisKey<D>;
  using Value = TrellisValue<D>;

  static __device__ void build_tables(const DecodeArgs& args, unsigned char* table, int, int thread, int n_threads) {
    for (int i = thread; i < kTableBytes / 4; i += n_threads) {
      const int state = i / (kStateStride / 4);
      const bool value = i % (kStateStride / 4) >= kValueLevels / 4;
      reinterpret_cast<std::uint32_t*>(table)[i] = pack_half2(value ? args.value_levels[state] : args.key_levels[state], 0);
    }
  }
};

}  // namespace kvant::cuda
