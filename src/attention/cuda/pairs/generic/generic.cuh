// Any pair of formats: what pages hold is an argument, by which all lanes branch alike. Each value is decoded
// to half precision (8 times finer than BF16), so that scales and zeros may lie anywhere; only factors of
// whole tokens go to scores and weights.
#pragma once

#include "attention/cuda/pairs/generic/centroids.cuh"
#include "attention/cuda/pairs/generic/grids.cuh"
#include "attention/cuda/pairs/generic/trellis_numbers.cuh"

namespace kvant::cuda {

// What a side needs beside its page.
struct AnySide {
  const AnyPage& page;
  const unsigned char* codebook;
  std::uint32_t levels;  // own_levels
};

__device__ __forceinline__ const unsigned char* codebook_of(const AnyPage& page, const unsigned char* shared,
                                                            const void* codebooks, std::int64_t stride,
                                                            int head) {
  if (page.table_at >= 0) return shared + page.table_at;
  return static_cast<const unsigned char*>(codebooks) + 2 * head * stride;
}

// The numbers of a run of fragments, of formats that are the same on both sides.
__device__ __forceinline__ void read_numbers(const AnyPage& page, const unsigned char* bytes, int run,
                                             int lane, Fragments& a) {
  switch (page.format.layout.bits) {
    case 1:
      return read_planes<1>(bytes, run, lane, a);
    case 2:
      return read_planes<2>(bytes, run, lane, a);
    case 3:
      return read_planes<3>(bytes, run, lane, a);
    case 4:
      return read_planes<4>(bytes, run, lane, a);
    case 5:
      return read_planes<5>(bytes, run, lane, a);
    case 6:
      return read_planes<6>(bytes, run, lane, a);
    default:
      return read_bytes(bytes, run, lane, a);
  }
}

__device__ __forceinline__ void read_any_levels(const AnySide& side, const unsigned char* bytes, int run,
                                                int lane, Fragments& a) {
  switch (side.page.format.layout.bits) {
    case 2:
      return read_levels<2>(bytes, run, lane, side.levels, a);
    case 3:
      return read_levels<3>(bytes, run, lane, side.levels, a);
    case 4:
      return read_levels<4>(bytes, run, lane, side.levels, a);
    default:
      return read_levels<5>(bytes, run, lane, side.levels, a);
  }
}

template <int D, PageSide Side, int Channels>
__device__ __forceinline__ void read_vectors(const AnySide& side, const unsigned char* bytes, int run,
                                             int lane, Fragments& a) {
  if constexpr (Side == PageSide::key) {
    read_key_vectors<D, Channels>(side.page, bytes, side.codebook, run, lane, a);
  } else {
    read_value_vectors<D, Channels>(side.page, bytes, side.codebook, run, lane, a);
  }
}

// A run of fragments, but for the factors of tokens.
template <int D, PageSide Side>
__device__ __forceinline__ void read_run(const AnySide& side, const unsigned char* bytes, int run, int lane,
                                         Fragments& a) {
  const PageFormat& format = side.page.format;
  switch (format.kind) {
    case CodeKind::number:
      read_numbers(side.page, bytes, run, lane, a);
      if constexpr (Side == PageSide::key) {
        scale_keys<D>(side.page, bytes, run, lane, a);
      } else {
        scale_values<D>(side.page, bytes, run, lane, a);
      }
      if (format.as_printed) clamp_integers(a);
      return;
    case CodeKind::e4m3:
      return read_e4m3(bytes, run, lane, a);
    case CodeKind::level:
      return read_any_levels(side, bytes, run, lane, a);
    case CodeKind::vector:
      switch (format.layout.channels) {
        case 2:
          return read_vectors<D, Side, 2>(side, bytes, run, lane, a);
        case 4:
          return read_vectors<D, Side, 4>(side, bytes, run, lane, a);
        default:
          return read_vectors<D, Side, 8>(side, bytes, run, lane, a);
      }
    default:
      if constexpr (Side == PageSide::key) {
        read_plain_keys<D>(side.page, bytes, run, lane, a);
      } else {
        read_plain_values<D>(side.page, bytes, run, lane, a);
      }
  }
}

template <int D>
__device__ __forceinline__ void score_any(const AnySide& side, const unsigned char* bytes,
                                          const Query<D>& query, int lane, Scores& s) {
  clear(s);
  const AnyPage& page = side.page;
  float mean[2] = {0, 0};
  if (page.format.kind == CodeKind::state) {
    score_trellis<D>(page.format.layout.bits, bytes, query, lane, s);
    float products[4] = {};
    const auto* pairs =
        reinterpret_cast<const uint2*>(bytes + page.code_bytes + kTokens + lane % 4 * (D / 2));
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint2 x = pairs[k];
      mma_f16(products, x.x, x.x, x.y, x.y, query.b[k][0], query.b[k][1]);
    }
    mean[0] = products[0] * query.factor[0];
    mean[1] = products[1] * query.factor[1];
  } else {
#pragma unroll 1
    for (int k = 0; k < D / 16; ++k) {
      std::uint32_t q[2];
      select(query.b, k, q);
      Fragments a;
      read_run<D, PageSide::key>(side, bytes, k, lane, a);
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) mma_f16(s[m], a[m][0], a[m][1], a[m][2], a[m][3], q[0], q[1]);
    }
  }
  const float factor[2] = {query.factor[0] * page.unit, query.factor[1] * page.unit};
#pragma unroll
  for (int part = 0; part < kTokenTiles / 2; ++part) {
    const float4 four = token_factors<D>(page, bytes, part, lane);
    const float of_token[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = s[2 * part + i / 4][i % 4];
      x = fmaf(x, of_token[i / 2] * factor[i % 2], mean[i % 2]);
    }
  }
}

// Weights times the factors of their tokens.
template <int D>
__device__ __forceinline__ Weights weigh_tokens(const AnyPage& page, const unsigned char* bytes,
                                                const Scores& p, int lane) {
  Weights weights;
#pragma unroll
  for (int part = 0; part < kTokenTiles / 2; ++part) {
    const float4 four = token_factors<D>(page, bytes, part, lane);
    const float of_token[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile = 2 * part + i / 2;
      const int row = i % 2;
      weights.b[tile][row] =
          transpose_8x8(pack_half2(p[tile][2 * row] * of_token[i], p[tile][2 * row + 1] * of_token[i]));
    }
  }
  return weights;
}

// out += sum over the page's tokens of p value / unit
template <int D>
__device__ __forceinline__ void mix_any(const AnySide& side, const unsigned char* bytes, const Scores& p,
                                        int lane, float (&out)[D / 16][4]) {
  constexpr int kMTiles = D / 16;
  const AnyPage& page = side.page;
  const Weights weights = weigh_tokens<D>(page, bytes, p, lane);
  if (page.format.kind == CodeKind::state) {
    float total[2] = {0, 0};
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      total[0] += p[tile][0] + p[tile][2];
      total[1] += p[tile][1] + p[tile][3];
    }
    total[0] = sum_over_tokens(total[0]) / page.unit;
    total[1] = sum_over_tokens(total[1]) / page.unit;
    const auto* means =
        reinterpret_cast<const std::uint32_t*>(bytes + page.code_bytes + kTokens + lane / 4 * (D / 4));
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      const float2 mean = unpack_half2(means[m]);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] = fmaf(total[i % 2], i < 2 ? mean.x : mean.y, out[m][i]);
    }
    mix_trellis<D>(page.format.layout.bits, bytes, weights, lane, out);
    return;
  }
  static_assert(kRun % kMTiles == 0);
#pragma unroll 1
  for (int run = 0; run < kMTiles; ++run) {
    Fragments a;
    read_run<D, PageSide::value>(side, bytes, run, lane, a);
#pragma unroll
    for (int tile = 0; tile < kRun / kMTiles; ++tile) {
      std::uint32_t b[2];
      select(weights.b, run * (kRun / kMTiles) + tile, b);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        const std::uint32_t(&x)[4] = a[tile * kMTiles + m];
        mma_f16(out[m], x[0], x[1], x[2], x[3], b[0], b[1]);
      }
    }
  }
}

template <int D>
struct GenericPair {
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = true;
  static constexpr int kTableBytes = 0;  // of a launch: see AnyPage
  static constexpr int kMostWarps = 7;

  struct State {
    std::uint32_t key_levels = 0, value_levels = 0;
    float unit;  // of values
    Accumulator<D> acc = {};

    __device__ State(const DecodeArgs& args, const Segment&, int lane) : unit(args.value_page.unit) {
      if (args.key_page.format.kind == CodeKind::level) key_levels = own_levels(args.key_page, lane);
      if (args.value_page.format.kind == CodeKind::level) value_levels = own_levels(args.value_page, lane);
      acc.max[0] = acc.max[1] = kNoScore;
    }
  };

  static __device__ __forceinline__ void attend(const DecodeArgs& args, unsigned char* shared,
                                                const Segment& segment, int page, const Query<D>& query,
                                                int lane, RingReader& ring, State& state) {
    const AnySide key{
        args.key_page,
        codebook_of(args.key_page, shared, args.key_codebooks, args.key_codebook_stride, segment.head),
        state.key_levels};
    const AnySide value{
        args.value_page,
        codebook_of(args.value_page, shared, args.value_codebooks, args.value_codebook_stride, segment.head),
        state.value_levels};
    Scores s;
    score_any<D>(key, ring.wait(), query, lane, s);
    ring.release();
    if (may_be_masked(args, page)) mask_scores(args, segment, page, 0, lane, s);
    NoState none;
    soften<D>(s, state.acc, none);
    mix_any<D>(value, ring.wait(), s, lane, state.acc.out);
    ring.release();
  }

  static __device__ __forceinline__ void finish(const State& state, int, Accumulator<D>& acc) {
    acc = state.acc;
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc.out[m][i] *= state.unit;
    }
  }

  static __device__ void build_tables(const DecodeArgs& args, unsigned char* shared, int head, int thread,
                                      int n_threads) {
    copy_codebook(args.key_page, args.key_codebooks, args.key_codebook_stride, shared, head, thread,
                  n_threads);
    copy_codebook(args.value_page, args.value_codebooks, args.value_codebook_stride, shared, head, thread,
                  n_threads);
  }

 private:
  static __device__ void copy_codebook(const AnyPage& page, const void* codebooks, std::int64_t stride,
                                       unsigned char* shared, int head, int thread, int n_threads) {
    if (page.table_at < 0) return;
    const auto* from = reinterpret_cast<const std::uint32_t*>(static_cast<const unsigned char*>(codebooks) +
                                                              2 * head * stride);
    auto* to = reinterpret_cast<std::uint32_t*>(shared + page.table_at);
    for (int i = thread; i < page.codebook_bytes / 4; i += n_threads) to[i] = from[i];
  }
};

}  // namespace kvant::cuda
