// Attends to keys and values lm2, lm3 and lm4 (TurboQuant), which are levels of a Lloyd-Max quantizer times a
// gain per token. Because look-ups take most of the time, codes are looked up in pairs, and codes of 2 bits
// four at a time.
#pragma once

#include "device/cuda/pairs/look_up.cuh"

namespace kvant::cuda {

// Holds N indices of 6 bits from the first bit of `words` on, in a form in which each index can be read as
// part of one byte. An index that crosses a byte boundary lies within one byte after a shift by four bits.
template <int N, int Words>
struct PairIndices {
  std::uint32_t here[Words], moved[Words];

  __device__ __forceinline__ explicit PairIndices(const std::uint32_t (&words)[Words]) {
#pragma unroll
    for (int w = 0; w < Words; ++w) {
      here[w] = words[w] & mask(w, false);
      moved[w] = __funnelshift_r(words[w], words[w + 1 < Words ? w + 1 : w], kMove) & mask(w, true);
    }
  }
  // Returns the offset of index `i` in the table, as entry_of_byte() does.
  __device__ __forceinline__ std::uint32_t entry(int i, std::uint32_t lane_offset) const {
    const int bit = bit_of(i);
    const std::uint32_t word = is_moved(i) ? moved[bit / 32] : here[bit / 32];
    return entry_of_byte(word, bit % 32 / 8, lane_offset, bit % 8);
  }

 private:
  static constexpr int kBits = 6;
  static constexpr int kMove = 4;  // number of bits of the shift

  static __device__ __forceinline__ constexpr bool is_moved(int i) {
    return i * kBits % 8 + kBits > 8;
  }
  // Returns the bit, within the words in which index i is looked up, at which the index begins.
  static __device__ __forceinline__ constexpr int bit_of(int i) {
    return i * kBits - (is_moved(i) ? kMove : 0);
  }
  static __device__ __forceinline__ constexpr std::uint32_t mask(int word, bool of_moved) {
    std::uint32_t bits = 0;
    for (int i = 0; i < N; ++i)
      if (is_moved(i) == of_moved && bit_of(i) / 32 == word) bits |= ((1U << kBits) - 1) << bit_of(i) % 32;
    return bits;
  }
};

// Calls visit(fragment, a0, a1, a2, a3) for `Fragments` consecutive fragments, whose codes start at the first
// bit of `words`.
template <int Bits, int Fragments, int Words, class Visit>
__device__ __forceinline__ void visit_levels(const unsigned char* table, const std::uint32_t (&words)[Words],
                                             int lane, const Visit& visit) {
  const std::uint32_t lane_4 = lane * 4;
  if constexpr (Bits == 3) {
    const PairIndices<Fragments * 4, Words> indices(words);
#pragma unroll
    for (int f = 0; f < Fragments; ++f) {
      std::uint32_t a[4];
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) a[reg] = look_up_4(table, indices.entry(f * 4 + reg, lane_4));
      visit(f, a[0], a[1], a[2], a[3]);
    }
  } else if constexpr (Bits == 4) {
#pragma unroll
    for (int f = 0; f < Fragments; ++f) {
      std::uint32_t a[4];
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) a[reg] = look_up_4(table, entry_of_byte(words[f], reg, lane_4));
      visit(f, a[0], a[1], a[2], a[3]);
    }
  } else {
#pragma unroll
    for (int f = 0; f < Fragments; f += 2) {
      uint2 rows[4];
#pragma unroll
      for (int row = 0; row < 4; ++row)
        rows[row] = look_up_8(table, entry_of_byte(words[f / 2], row, lane % 16 * 8));
      visit(f, rows[0].x, rows[1].x, rows[0].y, rows[1].y);
      visit(f + 1, rows[2].x, rows[3].x, rows[2].y, rows[3].y);
    }
  }
}

// Calls visit(k_tile, m_tile, a0, a1, a2, a3) for all fragments of a page.
template <int Bits, int KTiles, int MTiles, class Visit>
__device__ __forceinline__ void for_each_level_fragment(const unsigned char* table,
                                                        const unsigned char* codes, int lane,
                                                        const Visit& visit) {
  constexpr int kPieces = Bits == 3 ? 3 : 1;              // pieces that hold a whole number of fragments
  constexpr int kFragments = kPieces * 128 / (8 * Bits);  // fragments in these pieces
  static_assert(KTiles * MTiles % kFragments == 0);
  const auto* pieces = reinterpret_cast<const uint4*>(codes) + lane;
#pragma unroll
  for (int first = 0; first < KTiles * MTiles; first += kFragments) {
    std::uint32_t words[4 * kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint4 piece = pieces[(first / kFragments * kPieces + i) * kLanes];
      words[4 * i] = piece.x;
      words[4 * i + 1] = piece.y;
      words[4 * i + 2] = piece.z;
      words[4 * i + 3] = piece.w;
    }
    visit_levels<Bits, kFragments>(table, words, lane, [&](int f, auto a0, auto a1, auto a2, auto a3) {
      visit((first + f) / MTiles, (first + f) % MTiles, a0, a1, a2, a3);
    });
  }
}

template <int Bits, int D>
struct LloydMaxKey {
  static constexpr int kCodes = kPageTokens * D * Bits / 8;
  static constexpr int kPageBytes = kCodes + 2 * kPageTokens;

  static __device__ __forceinline__ void score(const DecodeArgs& args, const unsigned char* table,
                                               const unsigned char* page, const Query<D>& query, int lane,
                                               Scores& s) {
    clear(s);
    for_each_level_fragment<Bits, D / 16, kTokenTiles>(
        table, page, lane, [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
          mma_f16(s[m], a0, a1, a2, a3, query.b[k][0], query.b[k][1]);
        });
    const TokenParameters gains(page + kCodes, lane);
    const float factor[2] = {query.factor[0] * args.key_unit, query.factor[1] * args.key_unit};
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      const float2 gain = gains.floats(m);
      s[m][0] *= gain.x * factor[0];
      s[m][1] *= gain.x * factor[1];
      s[m][2] *= gain.y * factor[0];
      s[m][3] *= gain.y * factor[1];
    }
  }
};

template <int Bits, int D>
struct LloydMaxValue {
  static constexpr int kCodes = kPageTokens * D * Bits / 8;
  static constexpr int kPageBytes = kCodes + 2 * kPageTokens;
  using State = NoState;

  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char* table,
                                             const unsigned char* page, const Scores& p, int lane,
                                             float (&out)[D / 16][4], State&) {
    const Weights weights = pack_gained_weights(p, TokenParameters(page + kCodes, lane));
    for_each_level_fragment<Bits, kTokenTiles, D / 16>(
        table, page, lane, [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
          mma_f16(out[m], a0, a1, a2, a3, weights.b[k][0], weights.b[k][1]);
        });
  }

  static __device__ __forceinline__ void finish(const DecodeArgs& args, float (&out)[D / 16][4],
                                                const State&) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] *= args.value_unit * kLargestWeight;
    }
  }
};

template <int Bits, int D>
struct LloydMaxStrips;  // defined in lloyd_max_strips.cuh

template <int Bits, int D>
struct LloydMaxPair {
  using Strips = LloydMaxStrips<Bits, D>;
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = false;
  static constexpr int kIndexBits = Bits == 3 ? 6 : 8;
  static constexpr int kTableBytes = (1 << kIndexBits) * kEntryStride;
  using Key = LloydMaxKey<Bits, D>;
  using Value = LloydMaxValue<Bits, D>;

  static __device__ void build_tables(const DecodeArgs& args, unsigned char* table, int, int thread,
                                      int n_threads) {
    constexpr int kCodeMask = (1 << Bits) - 1;
    for (int i = thread; i < kTableBytes / 4; i += n_threads) {
      const int entry = i / 32;
      // An entry of four levels has two words, each for a pair of codes.
      const int code = Bits == 2 ? entry >> (i % 2 * 4) : entry;
      const float low = args.key_levels[code & kCodeMask];
      const float high = args.key_levels[(code >> Bits) & kCodeMask];
      reinterpret_cast<std::uint32_t*>(table)[i] = pack_half2(low, high);
    }
  }
};

}  // namespace kvant::cuda
