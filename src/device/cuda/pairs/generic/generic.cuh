// Attends to any pair of formats, for pairs without a kernel of their own. The description of a page is an
// argument, so all lanes take the same branches. Each value is decoded to half precision, which is 8 times
// finer than BF16. The scales and zeros of a format may therefore belong to any group of values. Only factors
// of whole tokens are applied to scores and weights instead of to values. Pages of BF16 numbers are
// multiplied unchanged.
//
// D is the head size. A warp has block_dim(D) channels. Heads of 512 channels are split into blocks
// (page_layout.h). The codes of a block are laid out like a page of their own, while the parameters belong to
// the whole page.
#pragma once

#include "device/cuda/pairs/generic/centroids.cuh"
#include "device/cuda/pairs/generic/grids.cuh"
#include "device/cuda/pairs/generic/trellis_numbers.cuh"

namespace kvant::cuda {

// Holds what a side needs in addition to its page.
struct AnySide {
  const AnyPage& page;
  const unsigned char* codebook;
  std::uint32_t levels;  // levels that this lane keeps (own_levels)
};

__device__ __forceinline__ const unsigned char* codebook_of(const AnyPage& page, const unsigned char* shared,
                                                            const void* codebooks, std::int64_t stride,
                                                            int head) {
  if (page.table_at >= 0) return shared + page.table_at;
  return static_cast<const unsigned char*>(codebooks) + 2 * head * stride;
}

template <int N>
using Constant = std::integral_constant<int, N>;

// Number lists the types of the numbers in a fragment.
enum class Number { half, bf16 };
template <Number Kind>
using NumberConstant = std::integral_constant<Number, Kind>;

// Computes c += a b for factors of type `Kind`.
template <Number Kind>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
  if constexpr (Kind == Number::half) {
    mma_f16(c, a[0], a[1], a[2], a[3], b[0], b[1]);
  } else {
    mma_bf16(c, a[0], a[1], a[2], a[3], b[0], b[1]);
  }
}

// Calls body(Constant<bits>) with the number of bits per code as a compile-time constant.
template <class Body>
__device__ __forceinline__ void with_number_bits(int bits, const Body& body) {
  switch (bits) {
    case 1:
      return body(Constant<1>{});
    case 2:
      return body(Constant<2>{});
    case 3:
      return body(Constant<3>{});
    case 4:
      return body(Constant<4>{});
    case 5:
      return body(Constant<5>{});
    case 6:
      return body(Constant<6>{});
    default:
      return body(Constant<8>{});
  }
}

// Calls body(constant) with a compile-time constant. The constant is the number of bits per code of a format
// whose codes are levels.
template <class Body>
__device__ __forceinline__ void with_level_bits(int bits, const Body& body) {
  switch (bits) {
    case 2:
      return body(Constant<2>{});
    case 3:
      return body(Constant<3>{});
    case 4:
      return body(Constant<4>{});
    default:
      return body(Constant<5>{});
  }
}

template <class Body>
__device__ __forceinline__ void with_channels(int channels, const Body& body) {
  switch (channels) {
    case 2:
      return body(Constant<2>{});
    case 4:
      return body(Constant<4>{});
    default:
      return body(Constant<8>{});
  }
}

// Returns the codes of the warp's block in a page that begins at `bytes`.
template <int D>
__device__ __forceinline__ const unsigned char* own_codes(const AnyPage& page, const unsigned char* bytes) {
  return bytes + own_block<D>() * (page.code_bytes / code_blocks(D));
}

// Calls body with a NumberConstant and a function read(run, fragments), which reads a run and applies the
// grid.
template <int D, PageSide Side, GridAxis Grid, class Body>
__device__ __forceinline__ void with_numbers(const AnyPage& page, const unsigned char* bytes, int lane,
                                             const Body& body) {
  const GridScaler<D, Side, Grid> scaler(page, bytes, lane);
  const unsigned char* codes = own_codes<D>(page, bytes);
  with_number_bits(page.format.layout.bits, [&](auto bits) {
    body(NumberConstant<Number::half>{}, [&](int run, Fragments& a) {
      if constexpr (bits.value == 8) {
        read_bytes(codes, run, lane, a);
      } else {
        read_planes<bits.value>(codes, run, lane, a);
      }
      scaler.apply(run, a);
      if constexpr (Grid == GridAxis::of_integers)
        if (page.format.as_printed) clamp_integers(a);
    });
  });
}

// Calls body with a NumberConstant and a function read(run, fragments), which reads a run of a page without
// the scales of tokens. Every format except trellis codes is supported.
template <int D, PageSide Side, class Body>
__device__ __forceinline__ void with_reader(const AnySide& side, const unsigned char* bytes, int lane,
                                            const Body& body) {
  constexpr NumberConstant<Number::half> kHalf{};
  const AnyPage& page = side.page;
  const unsigned char* codes = own_codes<D>(page, bytes);
  switch (page.format.kind) {
    case CodeKind::number:
      switch (page.format.grid) {
        case GridAxis::none:
          return with_numbers<D, Side, GridAxis::none>(page, bytes, lane, body);
        case GridAxis::of_tokens:
          return with_numbers<D, Side, GridAxis::of_tokens>(page, bytes, lane, body);
        case GridAxis::of_channels:
          return with_numbers<D, Side, GridAxis::of_channels>(page, bytes, lane, body);
        case GridAxis::of_integers:
          return with_numbers<D, Side, GridAxis::of_integers>(page, bytes, lane, body);
      }
      return;
    case CodeKind::e4m3:
      return body(kHalf, [&](int run, Fragments& a) { read_e4m3(codes, run, lane, a); });
    case CodeKind::level:
      return with_level_bits(page.format.layout.bits, [&](auto bits) {
        body(kHalf,
             [&](int run, Fragments& a) { read_levels<bits.value>(codes, run, lane, side.levels, a); });
      });
    case CodeKind::vector:
      return with_channels(page.format.layout.channels, [&](auto channels) {
        body(kHalf, [&](int run, Fragments& a) {
          if constexpr (Side == PageSide::key) {
            read_key_vectors<D, channels.value>(page, codes, side.codebook, run, lane, a);
          } else {
            read_value_vectors<D, channels.value>(page, codes, side.codebook, run, lane, a);
          }
        });
      });
    default:
      // Plain pages are not divided into blocks, so `bytes` is the start of the whole page.
      const auto read = [&](int run, Fragments& a) {
        if constexpr (Side == PageSide::key) {
          read_plain_keys<D>(bytes, run, lane, a);
        } else {
          read_plain_values<D>(bytes, run, lane, a);
        }
      };
      return page.format.kind == CodeKind::f16 ? body(kHalf, read)
                                               : body(NumberConstant<Number::bf16>{}, read);
  }
}

// Returns the products of the queries of heads 2t and 2t + 1 with one row of channels that all tokens share.
// row(k) is the A operand of contraction tile k.
template <int D, class Row>
__device__ __forceinline__ float2 score_row(const Query<D>& query, const Row& row) {
  float products[4] = {};
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const uint2 x = row(k);
    mma_f16(products, x.x, x.x, x.y, x.y, query.b[k][0], query.b[k][1]);
  }
  return {products[0] * query.factor[0], products[1] * query.factor[1]};
}

// Returns the sums of the queries' channels. The zeros of tokens are multiplied by these sums.
template <int D>
__device__ __forceinline__ float2 sum_of_channels(const Query<D>& query) {
  constexpr std::uint32_t kOnes = 0x3c003c00;
  return score_row(query, [](int) { return uint2{kOnes, kOnes}; });
}

// Returns the queries' products with the means of a page's channels.
template <int D>
__device__ __forceinline__ float2 score_means(const AnyPage& page, const unsigned char* bytes,
                                              const Query<block_dim(D)>& query, int lane) {
  const unsigned char* parameters = bytes + page.code_bytes;
  const auto* codes = reinterpret_cast<const std::uint32_t*>(parameters + kTrellisMeansAt +
                                                             first_channel<D>(PageSide::key, lane % 4));
  const float2 steps = score_row(query, [&](int k) {
    const std::uint32_t four = codes[k] ^ kSignBits;
    return uint2{half2_from_bytes(four, Bytes::first, 128), half2_from_bytes(four, Bytes::last, 128)};
  });
  const float step = mean_step<D>(parameters);
  return {steps.x * step, steps.y * step};
}

template <int D>
__device__ __forceinline__ void score_any(const AnySide& side, const unsigned char* bytes,
                                          const Query<block_dim(D)>& query, int lane, Scores& s) {
  const AnyPage& page = side.page;
  clear(s);
  float2 mean{0, 0};
  if (page.format.kind == CodeKind::state) {
    mean = score_means<D>(page, bytes, query, lane);
    score_trellis<D>(page.format.layout.bits, page.code_bytes, bytes, query, lane, s);
  } else {
    with_reader<D, PageSide::key>(side, bytes, lane, [&](auto number, const auto& read) {
#pragma unroll 1
      for (int k = 0; k < block_dim(D) / 16; ++k) {
        std::uint32_t q[2];
        select(query.b, k, q);
        if constexpr (number.value == Number::bf16) {
          q[0] = bf16_from_half2(q[0]);
          q[1] = bf16_from_half2(q[1]);
        }
        Fragments a;
        read(k, a);
#pragma unroll
        for (int m = 0; m < kTokenTiles; ++m) multiply_add<number.value>(s[m], a[m], q);
      }
    });
  }
  float2 sum{0, 0};
  if (page.format.factor == TokenFactor::grid) sum = sum_of_channels(query);
  const float factor[2] = {query.factor[0] * page.unit, query.factor[1] * page.unit};
#pragma unroll
  for (int part = 0; part < kTokenTiles / 2; ++part) {
    const TokenScales scales = token_scales<D>(page, bytes, part, lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = s[2 * part + i / 4][i % 4];
      x = fmaf(x, scales.factor[i / 2] * factor[i % 2],
               fmaf(scales.zero[i / 2], i % 2 == 0 ? sum.x : sum.y, i % 2 == 0 ? mean.x : mean.y));
    }
  }
}

// Packs weights as factors of BF16 numbers.
__device__ __forceinline__ Weights pack_bf16_weights(const Scores& p) {
  Weights weights;
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
    for (int row = 0; row < 2; ++row)
      weights.b[tile][row] = transpose_8x8(pack_bf16x2(p[tile][2 * row], p[tile][2 * row + 1]));
  }
  return weights;
}

struct TokenFactors {
  float of[kTokenTiles / 2][4];  // factors of the lane's tokens in each part of 32 tokens
};

__device__ __forceinline__ Weights pack_weights(const Scores& p, const TokenFactors& factors, float unit) {
  Weights weights;
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float factor = factors.of[tile / 2][tile % 2 * 2 + row] * unit;
      weights.b[tile][row] =
          transpose_8x8(pack_half2(p[tile][2 * row] * factor, p[tile][2 * row + 1] * factor));
    }
  }
  return weights;
}

// Multiplies weights by the factors of their tokens and divides them by 2^shift. `shift` is 0 if the products
// fit in half precision. Adds the weights times the tokens' zeros to `zero` for heads 2t and 2t + 1.
template <int D>
__device__ __forceinline__ Weights weigh_tokens(const AnyPage& page, const unsigned char* bytes,
                                                const Scores& p, int lane, float (&zero)[2], int& shift) {
  shift = 0;
  if (page.format.kind == CodeKind::bf16) return pack_bf16_weights(p);
  TokenFactors factors;
  float largest = 0;
#pragma unroll
  for (int part = 0; part < kTokenTiles / 2; ++part) {
    const TokenScales scales = token_scales<D>(page, bytes, part, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* weight = &p[2 * part + i / 2][i % 2 * 2];
      zero[0] = fmaf(weight[0], scales.zero[i], zero[0]);
      zero[1] = fmaf(weight[1], scales.zero[i], zero[1]);
      factors.of[part][i] = scales.factor[i];
      largest = fmaxf(largest, fabsf(scales.factor[i]));
    }
  }
  constexpr float kMax = 65504 / kLargestWeight;
  const Weights weights = pack_weights(p, factors, 1);
  if (!__any_sync(~0U, largest > kMax)) return weights;
  // Factors are below 2^above. After the shift, products are below 2^15.
  const int above = static_cast<int>(__reduce_max_sync(~0U, __float_as_uint(largest)) >> 23) - 126;
  shift = above + static_cast<int>(kWeightBits) - 15;
  return pack_weights(p, factors, power_of_two(-shift));
}

// Computes out += the weights times the means of channels, in units of page.unit.
template <int D>
__device__ __forceinline__ void add_means(const AnyPage& page, const unsigned char* bytes, const Scores& p,
                                          int lane, float (&out)[block_dim(D) / 16][4]) {
  float total[2] = {0, 0};
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    total[0] += p[tile][0] + p[tile][2];
    total[1] += p[tile][1] + p[tile][3];
  }
  const unsigned char* parameters = bytes + page.code_bytes;
  const float step = mean_step<D>(parameters) / page.unit;
  total[0] = sum_over_tokens(total[0]) * step;
  total[1] = sum_over_tokens(total[1]) * step;
  const auto* codes = reinterpret_cast<const std::uint32_t*>(parameters + kTrellisMeansAt +
                                                             first_channel<D>(PageSide::value, lane / 4));
#pragma unroll
  for (int m = 0; m < block_dim(D) / 16; ++m) {
    const std::uint32_t four = codes[m / 2] ^ kSignBits;
    const float mean[2] = {float_from_byte(four, m % 2 * 2, 128), float_from_byte(four, m % 2 * 2 + 1, 128)};
#pragma unroll
    for (int i = 0; i < 4; ++i) out[m][i] = fmaf(total[i % 2], mean[i / 2], out[m][i]);
  }
}

// Computes out += the weights times the numbers of the page.
template <int D>
__device__ __forceinline__ void mix_runs(const AnySide& side, const unsigned char* bytes,
                                         const Weights& weights, int lane,
                                         float (&out)[block_dim(D) / 16][4]) {
  constexpr int kMTiles = block_dim(D) / 16;
  constexpr int kTogether = kRunMTiles<block_dim(D)>;
  constexpr int kRunsOfTile = kMTiles / kTogether;
  with_reader<D, PageSide::value>(side, bytes, lane, [&](auto number, const auto& read) {
#pragma unroll 1
    for (int first_run = 0; first_run < kMTiles; first_run += kRunsOfTile) {
#pragma unroll
      // The m tiles of a part must be compile-time constants.
      for (int part = 0; part < kRunsOfTile; ++part) {
        Fragments a;
        read(first_run + part, a);
#pragma unroll
        for (int tile = 0; tile < kRun / kTogether; ++tile) {
          std::uint32_t b[2];
          select(weights.b, first_run / kRunsOfTile * (kRun / kTogether) + tile, b);
#pragma unroll
          for (int m = 0; m < kTogether; ++m)
            multiply_add<number.value>(out[part * kTogether + m], a[tile * kTogether + m], b);
        }
      }
    }
  });
}

// Computes out += the sum over the page's tokens of p value / unit without the zeros of tokens. The zeros are
// added to `zero`.
template <int D>
__device__ __forceinline__ void mix_any(const AnySide& side, const unsigned char* bytes, const Scores& p,
                                        int lane, float (&zero)[2], float (&out)[block_dim(D) / 16][4]) {
  const AnyPage& page = side.page;
  int shift;
  const Weights weights = weigh_tokens<D>(page, bytes, p, lane, zero, shift);
  if (page.format.kind == CodeKind::state) add_means<D>(page, bytes, p, lane, out);
  if (shift != 0) multiply(out, power_of_two(-shift));
  if (page.format.kind == CodeKind::state) {
    mix_trellis<D>(page.format.layout.bits, page.code_bytes, bytes, weights, lane, out);
  } else {
    mix_runs<D>(side, bytes, weights, lane, out);
  }
  if (shift != 0) multiply(out, power_of_two(shift));
}

template <int D>
struct GenericPair {
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = true;
  static constexpr SasUse kSas = SasUse::on_request;
  static constexpr bool kCaps = true;
  static constexpr int kTableBytes = 0;  // the size depends on the launch (AnyPage::table_at)
  static constexpr int kMaxWarps = channel_warps(D) > 1 ? max_consumer_warps(D) : 7;

  struct State {
    std::uint32_t key_levels = 0, value_levels = 0;
    float unit;              // unit of the values
    float zero[2] = {0, 0};  // sums of weights times zeros of this lane's tokens
    Accumulator<block_dim(D)> acc = {};

    template <class Part>
    __device__ State(const DecodeArgs& args, const Part&, int lane) : unit(args.value_page.unit) {
      if (args.key_page.format.kind == CodeKind::level) key_levels = own_levels(args.key_page, lane);
      if (args.value_page.format.kind == CodeKind::level) value_levels = own_levels(args.value_page, lane);
      acc.max[0] = acc.max[1] = kNoScore;
    }
    __device__ __forceinline__ void scale(int h, float factor) { zero[h] *= factor; }
  };

  template <class Part>
  static __device__ __forceinline__ void attend(const DecodeArgs& args, unsigned char* shared,
                                                const Part& segment, int page,
                                                const Query<block_dim(D)>& query, int lane, RingReader& ring,
                                                State& state) {
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
    add_blocks<D>(args, shared, lane, s);
    cap_scores<GenericPair>(args, s);
    if (may_be_masked(args, segment, page)) mask_scores(args, segment, page, 0, lane, s);
    online_softmax<GenericPair>(args, s, state.acc, state);
    mix_any<D>(value, ring.wait(), s, lane, state.zero, state.acc.out);
    ring.release();
  }

  static __device__ __forceinline__ void finish(const State& state, int, Accumulator<block_dim(D)>& acc) {
    acc = state.acc;
    const float zero[2] = {sum_over_tokens(state.zero[0]), sum_over_tokens(state.zero[1])};
#pragma unroll
    for (int m = 0; m < block_dim(D) / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc.out[m][i] = fmaf(acc.out[m][i], state.unit, zero[i % 2]);
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
