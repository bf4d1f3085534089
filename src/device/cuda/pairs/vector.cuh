// Attends to keys and values vq (VecInfer), and nvq, which has a gain per token. A code of B bits stands for
// X channels. Each KV head has a codebook of 2^B half-precision centroids of X channels, which kernels look
// up in shared memory.
#pragma once

#include "device/cuda/pairs/look_up.cuh"

namespace kvant::cuda {

// CodebookTable is a codebook in shared memory. The table consists of as many interleaved copies as fit, up
// to one copy for each lane that is served at a time. Lane l reads copy l % kCopies.
template <int Channels, int Bits>
struct CodebookTable {
  static constexpr int kEntryBytes = 2 * Channels;
  static constexpr int kMaxBytes = Channels == 8 ? 65536 : 32768;
  static constexpr int kCopies = (kMaxBytes >> Bits) / kEntryBytes < kEntryStride / kEntryBytes
                                     ? (kMaxBytes >> Bits) / kEntryBytes
                                     : kEntryStride / kEntryBytes;
  static constexpr int kStride = kCopies * kEntryBytes;
  static constexpr int kBytes = kStride << Bits;
  static_assert(kCopies >= 1);

  static __device__ void build(const void* codebooks, std::int64_t codebook_stride, int head,
                               unsigned char* table, int thread, int n_threads) {
    const auto* centroids = reinterpret_cast<const std::uint32_t*>(static_cast<const __half*>(codebooks) +
                                                                   head * codebook_stride);
    for (int i = thread; i < kBytes / 4; i += n_threads) {
      const int entry = i / (kStride / 4);
      reinterpret_cast<std::uint32_t*>(table)[i] =
          centroids[entry * (kEntryBytes / 4) + i % (kEntryBytes / 4)];
    }
  }
};

// Holds a centroid as pairs of neighbouring channels.
template <int Channels>
struct Centroid {
  std::uint32_t pairs[Channels / 2];
};

// Returns the offset of the entry of code `i` in this lane's copy of the codebook.
template <int Channels, int Bits, int Words>
__device__ __forceinline__ std::uint32_t centroid_offset(const std::uint32_t (&words)[Words], int i,
                                                         int lane) {
  using Table = CodebookTable<Channels, Bits>;
  const std::uint32_t copy = lane % Table::kCopies * Table::kEntryBytes;
  if constexpr (Bits == 8) return entry_of_byte<Table::kStride>(words[i / 4], i % 4, copy);
  const int bit = i * Bits;
  const int word = bit / 32;
  const bool straddles = bit % 32 + Bits > 32;
  const std::uint32_t field =
      straddles ? __funnelshift_r(words[word], words[straddles ? word + 1 : word], bit % 32) : words[word];
  const int from = straddles ? 0 : bit % 32;
  constexpr int kTo = Table::kStride == 128  ? 7
                      : Table::kStride == 64 ? 6
                      : Table::kStride == 32 ? 5
                      : Table::kStride == 16 ? 4
                                             : 3;
  const std::uint32_t shifted = from >= kTo ? field >> (from - kTo) : field << (kTo - from);
  constexpr std::uint32_t kMask = ((1U << Bits) - 1) << kTo;
  return (shifted & kMask) | copy;
}

// Returns the centroid of code `i` of the stream.
template <int Channels, int Bits, int Words>
__device__ __forceinline__ Centroid<Channels> look_up_centroid(const unsigned char* table,
                                                               const std::uint32_t (&words)[Words], int i,
                                                               int lane) {
  const std::uint32_t offset = centroid_offset<Channels, Bits>(words, i, lane);
  Centroid<Channels> result;
  if constexpr (Channels == 2) {
    result.pairs[0] = look_up_4(table, offset);
  } else if constexpr (Channels == 4) {
    const uint2 x = look_up_8(table, offset);
    result.pairs[0] = x.x;
    result.pairs[1] = x.y;
  } else {
    const uint4 x = *reinterpret_cast<const uint4*>(table + offset);
    result.pairs[0] = x.x;
    result.pairs[1] = x.y;
    result.pairs[2] = x.z;
    result.pairs[3] = x.w;
  }
  return result;
}

// Holds pieces of a lane's stream of codes. The pieces begin and end with whole codes.
template <int Channels, int Bits, int Words>
struct CodeWords {
  static_assert(Words % 4 == 0);
  std::uint32_t words[Words];

  __device__ __forceinline__ explicit CodeWords(const uint4* pieces) {
#pragma unroll
    for (int i = 0; i < Words / 4; ++i) {
      const uint4 piece = pieces[i * kLanes];
      words[4 * i] = piece.x;
      words[4 * i + 1] = piece.y;
      words[4 * i + 2] = piece.z;
      words[4 * i + 3] = piece.w;
    }
  }

  // Returns the centroid of code i.
  __device__ __forceinline__ Centroid<Channels> centroid(const unsigned char* table, int i, int lane) const {
    return look_up_centroid<Channels, Bits>(table, words, i, lane);
  }
};

constexpr int greatest_common_divisor(int a, int b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

// Returns how many groups of `bits` bits fill a whole number of pieces.
constexpr int groups_in_pieces(int bits) {
  return 128 / greatest_common_divisor(bits, 128);
}

// Says whether the codes are followed by half-precision gains of the tokens.
enum class Gains { none, of_tokens };

template <class Pair, int D>
struct VectorStrips;  // defined in vector_strips.cuh

template <int Channels, int Bits, int D, Gains Gain>
struct VectorKey {
  static constexpr int kCodes = kPageTokens * (D / Channels) * Bits / 8;
  static constexpr int kPageBytes = kCodes + (Gain == Gains::none ? 0 : 2 * kPageTokens);
  static constexpr int kTiles = Channels == 8 ? 2 : 1;  // contraction tiles per group of codes
  static constexpr int kPerRow = Channels == 2 ? 2 : 1;
  static constexpr int kGroupCodes = kTokenTiles * 2 * kPerRow;
  static constexpr int kTogether = groups_in_pieces(kGroupCodes * Bits);

  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char* tables,
                                               const unsigned char* page, const Query<D>& query, int lane,
                                               Scores& s) {
    clear(s);
    constexpr int kGroups = D / 16 / kTiles;
    static_assert(kGroups % kTogether == 0);
    using Words = CodeWords<Channels, Bits, kTogether * kGroupCodes * Bits / 32>;
#pragma unroll
    for (int first = 0; first < kGroups; first += kTogether) {
      const Words codes(reinterpret_cast<const uint4*>(page) + lane +
                        first / kTogether * (sizeof(Words) / 16 * kLanes));
#pragma unroll
      for (int group = 0; group < kTogether; ++group) {
#pragma unroll
        for (int m = 0; m < kTokenTiles; ++m) {
          const int code = group * kGroupCodes + m * 2 * kPerRow;
          const int k = (first + group) * kTiles;
          const auto row_0 = codes.centroid(tables, code, lane);
          const auto row_1 = codes.centroid(tables, code + 1, lane);
          if constexpr (Channels == 2) {
            const auto row_0_high = codes.centroid(tables, code + 2, lane);
            const auto row_1_high = codes.centroid(tables, code + 3, lane);
            mma_f16(s[m], row_0.pairs[0], row_1.pairs[0], row_0_high.pairs[0], row_1_high.pairs[0],
                    query.b[k][0], query.b[k][1]);
          } else {
#pragma unroll
            for (int i = 0; i < kTiles; ++i)
              mma_f16(s[m], row_0.pairs[2 * i], row_1.pairs[2 * i], row_0.pairs[2 * i + 1],
                      row_1.pairs[2 * i + 1], query.b[k + i][0], query.b[k + i][1]);
          }
        }
      }
    }
    if constexpr (Gain == Gains::of_tokens) {
      const TokenParameters gains(page + kCodes, lane);
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
        const float2 gain = gains.floats(m);
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][i] *= i < 2 ? gain.x : gain.y;
      }
    }
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][i] *= query.factor[i & 1];
    }
  }
};

template <int Channels, int Bits, int D, Gains Gain>
struct VectorValue {
  static constexpr int kCodes = kPageTokens * (D / Channels) * Bits / 8;
  static constexpr int kPageBytes = kCodes + (Gain == Gains::none ? 0 : 2 * kPageTokens);
  static constexpr int kMTiles = D / 16;
  static constexpr int kSpan = Channels / 2;  // m tiles per code
  static constexpr int kGroupCodes = 4 * kMTiles / kSpan;
  static constexpr int kTogether = groups_in_pieces(kGroupCodes * Bits);
  using State = NoState;

  // Adds the values of a page times their weights to `out`. `table` is the codebook of the values.
  static __device__ __forceinline__ void mix_from(const unsigned char* table, const unsigned char* page,
                                                  const Scores& p, int lane, float (&out)[kMTiles][4]) {
    static_assert(kTokenTiles % kTogether == 0);
    using Words = CodeWords<Channels, Bits, kTogether * kGroupCodes * Bits / 32>;
    const Weights weights = weigh(p, page, lane);
#pragma unroll
    for (int first = 0; first < kTokenTiles; first += kTogether) {
      const Words codes(reinterpret_cast<const uint4*>(page) + lane +
                        first / kTogether * (sizeof(Words) / 16 * kLanes));
#pragma unroll
      for (int group = 0; group < kTogether; ++group) {
        const int k = first + group;
#pragma unroll
        for (int m = 0; m < kMTiles; m += kSpan) {
          Centroid<Channels> tokens[4];  // channels 2m, 2m + 1, ... of the lane's tokens j = 0 .. 3
#pragma unroll
          for (int j = 0; j < 4; ++j)
            tokens[j] = codes.centroid(table, group * kGroupCodes + m / kSpan * 4 + j, lane);
#pragma unroll
          for (int i = 0; i < kSpan; ++i)
            mma_f16(out[m + i], low_halves(tokens[0].pairs[i], tokens[1].pairs[i]),
                    high_halves(tokens[0].pairs[i], tokens[1].pairs[i]),
                    low_halves(tokens[2].pairs[i], tokens[3].pairs[i]),
                    high_halves(tokens[2].pairs[i], tokens[3].pairs[i]), weights.b[k][0], weights.b[k][1]);
        }
      }
    }
  }

  static __device__ __forceinline__ void finish_sums(float (&out)[kMTiles][4]) {
    if constexpr (Gain == Gains::of_tokens) multiply(out, kLargestWeight);
  }

 private:
  static __device__ __forceinline__ Weights weigh(const Scores& p, const unsigned char* page, int lane) {
    if constexpr (Gain == Gains::of_tokens)
      return pack_gained_weights(p, TokenParameters(page + kCodes, lane));
    return pack_weights(p);
  }
};

// VectorPair attends to vector-quantized keys and values. A code has `Bits` bits for `Channels` channels,
// which may differ between keys and values.
template <int KeyChannels, int KeyBits, int ValueChannels, int ValueBits, int D, Gains Gain = Gains::none>
struct VectorPair {
  using Strips = VectorStrips<VectorPair, D>;
  static constexpr bool kSealed = true;
  static constexpr bool kHastensQueries = false;
  static constexpr bool kTablesPerHead = true;
  using KeyTable = CodebookTable<KeyChannels, KeyBits>;
  using ValueTable = CodebookTable<ValueChannels, ValueBits>;
  static constexpr int kTableBytes = KeyTable::kBytes + ValueTable::kBytes;
  using Key = VectorKey<KeyChannels, KeyBits, D, Gain>;

  struct Value : VectorValue<ValueChannels, ValueBits, D, Gain> {
    static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char* tables,
                                               const unsigned char* page, const Scores& p, int lane,
                                               float (&out)[D / 16][4], NoState&) {
      Value::mix_from(tables + KeyTable::kBytes, page, p, lane, out);
    }
    static __device__ __forceinline__ void finish(const DecodeArgs&, float (&out)[D / 16][4],
                                                  const NoState&) {
      Value::finish_sums(out);
    }
  };

  static __device__ void build_tables(const DecodeArgs& args, unsigned char* tables, int head, int thread,
                                      int n_threads) {
    KeyTable::build(args.key_codebooks, args.key_codebook_stride, head, tables, thread, n_threads);
    ValueTable::build(args.value_codebooks, args.value_codebook_stride, head, tables + KeyTable::kBytes,
                      thread, n_threads);
  }
};

}  // namespace kvant::cuda
