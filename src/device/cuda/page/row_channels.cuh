// Reads, rotates and writes a row of head_dim numbers in the registers of a warp. Kernels that append,
// transform or gather rows share these functions. Each lane has neighbouring channels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/cuda/common/arguments.h"
#include "device/cuda/page/page_layout.h"

namespace kvant::cuda {

inline constexpr int kRowAlignment = 16;

// Describes the numbers and the alignment of rows. is_wide says whether all rows start at multiples of
// kRowAlignment bytes.
struct RowType {
  NumberType number;
  int is_wide;
};

__device__ __forceinline__ float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float as_float(__half x) {
  return __half2float(x);
}
template <class Number>
__device__ __forceinline__ Number rounded_to(float x) {
  if constexpr (std::is_same_v<Number, __half>)
    return __float2half_rn(x);
  else
    return __float2bfloat16(x);
}

inline bool is_wide(const void* rows, std::int64_t row_stride, std::int64_t head_stride) {
  constexpr std::int64_t kChannels = kRowAlignment / sizeof(__nv_bfloat16);
  return reinterpret_cast<std::uintptr_t>(rows) % kRowAlignment == 0 && row_stride % kChannels == 0 &&
         head_stride % kChannels == 0;
}

// Returns the number of CTAs for `rows` rows with a warp each, or 0 if there are too many rows.
inline unsigned ctas_for(std::int64_t rows, int threads) {
  const std::int64_t ctas = (rows + threads / kLanes - 1) / (threads / kLanes);
  return ctas <= 0x7fffffff ? static_cast<unsigned>(ctas) : 0;
}

// load_short_channels() and store_short_channels() do the work of load_channels() and store_channels() for
// 16-bit numbers.
template <class Number, int N>
__device__ __forceinline__ void load_short_channels(const void* rows, bool is_wide, std::int64_t at,
                                                    float (&x)[N]) {
  const auto* const from = static_cast<const Number*>(rows) + at;
  struct alignas(2 * N < kRowAlignment ? 2 * N : kRowAlignment) Channels {
    Number x[N];
  } channels;
  if (is_wide) {
    channels = *reinterpret_cast<const Channels*>(from);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) channels.x[j] = from[j];
  }
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = as_float(channels.x[j]);
}
template <class Number, int N>
__device__ __forceinline__ void store_short_channels(void* rows, bool is_wide, std::int64_t at,
                                                     const float (&x)[N]) {
  auto* const to = static_cast<Number*>(rows) + at;
  struct alignas(2 * N < kRowAlignment ? 2 * N : kRowAlignment) Channels {
    Number x[N];
  } channels;
#pragma unroll
  for (int j = 0; j < N; ++j) channels.x[j] = rounded_to<Number>(x[j]);
  if (is_wide) {
    *reinterpret_cast<Channels*>(to) = channels;
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = channels.x[j];
  }
}

// Loads N neighbouring channels from number `at` on. If the rows are aligned, one instruction loads several
// channels.
template <int N>
__device__ __forceinline__ void load_channels(const void* rows, RowType type, std::int64_t at,
                                              float (&x)[N]) {
  if (type.number == NumberType::f32) {
    const float* const from = static_cast<const float*>(rows) + at;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      const float2 pair =
          type.is_wide != 0 ? *reinterpret_cast<const float2*>(from + j) : make_float2(from[j], from[j + 1]);
      x[j] = pair.x;
      x[j + 1] = pair.y;
    }
    return;
  }
  if (type.number == NumberType::f16) return load_short_channels<__half>(rows, type.is_wide != 0, at, x);
  load_short_channels<__nv_bfloat16>(rows, type.is_wide != 0, at, x);
}

template <int N>
__device__ __forceinline__ void store_channels(void* rows, RowType type, std::int64_t at,
                                               const float (&x)[N]) {
  if (type.number == NumberType::f32) {
    float* const to = static_cast<float*>(rows) + at;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      if (type.is_wide != 0) {
        *reinterpret_cast<float2*>(to + j) = make_float2(x[j], x[j + 1]);
      } else {
        to[j] = x[j];
        to[j + 1] = x[j + 1];
      }
    }
    return;
  }
  if (type.number == NumberType::f16) return store_short_channels<__half>(rows, type.is_wide != 0, at, x);
  store_short_channels<__nv_bfloat16>(rows, type.is_wide != 0, at, x);
}

template <int N>
__device__ __forceinline__ void scale_channels(const float* factors, std::int64_t at, float (&x)[N]) {
  if (factors == nullptr) return;
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] *= factors[at + j];
}

// Multiplies a row of N * Lanes channels by the orthonormal Walsh-Hadamard matrix. Every bit of a channel's
// number must be a bit of the lane or of the place in the lane. The order of the bits does not matter,
// because signs depend only on the bits that two numbers have in common. `Lanes` neighbouring lanes of a warp
// share a row.
template <int Lanes = kLanes, int N>
__device__ __forceinline__ void rotate_channels(int lane, float (&x)[N]) {
  const unsigned of_row = Lanes == kLanes ? ~0U : ((1U << Lanes % kLanes) - 1) << lane / Lanes * Lanes;
#pragma unroll
  for (int half = 1; half < N; half *= 2) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if ((j & half) != 0) continue;
      const float low = x[j];
      x[j] = low + x[j | half];
      x[j | half] = low - x[j | half];
    }
  }
#pragma unroll
  for (int half = 1; half < Lanes; half *= 2) {
#pragma unroll
    for (float& own : x) {
      const float other = __shfl_xor_sync(of_row, own, half);
      own = (lane & half) == 0 ? own + other : other - own;
    }
  }
  const float unit = rsqrtf(static_cast<float>(N * Lanes));
#pragma unroll
  for (float& own : x) own *= unit;
}

}  // namespace kvant::cuda
