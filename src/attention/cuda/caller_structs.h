// Structures of kvant.h as callers of any version hand them over.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvant/kvant.h"

namespace kvant::cuda {

// Of the kernels launched just now.
inline kvant_status launch_status() {
  return cudaPeekAtLastError() == cudaSuccess ? KVANT_OK : KVANT_CUDA_ERROR;
}

// Bytes of the first version of each structure.
template <class T>
inline constexpr std::size_t kFirstSize = sizeof(T);
template <>
inline constexpr std::size_t kFirstSize<kvant_decode_shape> = offsetof(kvant_decode_shape, corrected);
template <>
inline constexpr std::size_t kFirstSize<kvant_decode_layer> = offsetof(kvant_decode_layer, correction);

// A copy with all of today's members; false if there is none.
template <class T>
bool read_struct(const T* from, T* to) {
  if (from == nullptr || from->struct_size < kFirstSize<T>) return false;
  *to = {};
  std::memcpy(to, from, std::min(from->struct_size, sizeof(T)));
  return true;
}

inline bool read_correction(const kvant_correction* from, kvant_correction* to) {
  return read_struct(from, to) && to->states != nullptr && to->state_seq_stride % 4 == 0 &&
         to->state_head_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(to->states) % 16 == 0;
}

}  // namespace kvant::cuda
