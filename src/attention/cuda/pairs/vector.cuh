// vq-d4b8 keys and values (VecInfer): a byte stands for 4 channels. Codebooks belong to a KV head: 256
// half-precision centroids, 8 bytes each.
#pragma once

#include "attention/cuda/pairs/look_up.cuh"

namespace kvant::cuda {

inline constexpr int kVectorTable = 256 * kEntryStride;  // bytes, of one side

template <int D>
struct VectorKey {
  static constexpr int kPageBytes = kTokens * D / 4;

  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char* tables,
                                               const unsigned char* page, const Query<D>& query, int lane,
                                               Scores& s) {
    const auto* pieces = reinterpret_cast<const uint4*>(page) + lane;
    const std::uint32_t lane_8 = lane % 16 * 8;
    clear(s);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint4 piece = pieces[k * kLanes];
      const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int m = 0; m < kTokenTiles; m += 2) {
        uint2 rows[4];
#pragma unroll
        for (int row = 0; row < 4; ++row)
          rows[row] = look_up_8(tables, entry_offset<8>(words[m / 2], 8 * row, lane_8));
        mma_f16(s[m], rows[0].x, rows[1].x, rows[0].y, rows[1].y, query.b[k][0], query.b[k][1]);
        mma_f16(s[m + 1], rows[2].x, rows[3].x, rows[2].y, rows[3].y, query.b[k][0], query.b[k][1]);
      }
    }
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][i] *= query.factor[i & 1];
    }
  }
};

template <int D>
struct VectorValue {
  static constexpr int kPageBytes = kTokens * D / 4;
  using State = NoState;

  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char* tables,
                                             const unsigned char* page, const Scores& p, int lane,
                                             float (&out)[D / 16][4], State&) {
    constexpr int kMTiles = D / 16;
    const unsigned char* table = tables + kVectorTable;
    const auto* pieces = reinterpret_cast<const uint4*>(page) + lane;
    const std::uint32_t lane_8 = lane % 16 * 8;
    const Weights weights = pack_weights(p);
#pragma unroll
    for (int fragment = 0; fragment < kTokenTiles * kMTiles; fragment += 8) {
      const uint4 piece = pieces[fragment / 8 * kLanes];
      const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = (fragment + 2 * i) / kMTiles;
        const int m = (fragment + 2 * i) % kMTiles;
        uint2 tokens[4];  // channels 2m, 2m + 1 and 2m + 2, 2m + 3 of the lane's tokens j = 0 .. 3
#pragma unroll
        for (int j = 0; j < 4; ++j) tokens[j] = look_up_8(table, entry_offset<8>(words[i], 8 * j, lane_8));
        mma_f16(out[m], low_halves(tokens[0].x, tokens[1].x), high_halves(tokens[0].x, tokens[1].x),
                low_halves(tokens[2].x, tokens[3].x), high_halves(tokens[2].x, tokens[3].x), weights.b[k][0],
                weights.b[k][1]);
        mma_f16(out[m + 1], low_halves(tokens[0].y, tokens[1].y), high_halves(tokens[0].y, tokens[1].y),
                low_halves(tokens[2].y, tokens[3].y), high_halves(tokens[2].y, tokens[3].y), weights.b[k][0],
                weights.b[k][1]);
      }
    }
  }

  static __device__ __forceinline__ void finish(const DecodeArgs&, float (&)[D / 16][4], const State&) {}
};

template <int D>
struct VectorPair {
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = true;
  static constexpr int kTableBytes = 2 * kVectorTable;
  using Key = VectorKey<D>;
  using Value = VectorValue<D>;

  static __device__ void build_tables(const DecodeArgs& args, unsigned char* tables, int head, int thread,
                                      int n_threads) {
    const auto* keys = reinterpret_cast<const uint2*>(static_cast<const __half*>(args.key_codebooks) +
                                                      head * args.codebook_stride);
    const auto* values = reinterpret_cast<const uint2*>(static_cast<const __half*>(args.value_codebooks) +
                                                        head * args.codebook_stride);
    for (int i = thread; i < kTableBytes / 8; i += n_threads) {
      const int entry = i / 16 % 256;
      reinterpret_cast<uint2*>(tables)[i] = i < kVectorTable / 8 ? keys[entry] : values[entry];
    }
  }
};

}  // namespace kvant::cuda
