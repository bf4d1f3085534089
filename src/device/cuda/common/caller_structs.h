// Reads structures of kvant.h from callers that were compiled against any version of the header. A structure
// states its size. Members that are missing in an older caller's version become zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/caller_faults.h"
#include "device/cuda/common/arguments.h"
#include "device/cuda/common/refusal.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

using device::channels_or_all;
using device::is_aligned;
using device::kNoStruct;

// kFirstSize is the size that a structure has in version 1.0. When a structure gets another member, its size
// here becomes the offset of that member.
template <class T>
inline constexpr std::size_t kFirstSize = sizeof(T);

// Copies a structure and sets the members that the caller's version lacks to zero. Returns a reason if the
// structure is null or smaller than its first version.
template <class T>
Reason read_struct(const T* from, T* to) {
  static_assert(kNoStruct<T> != nullptr);
  if (from == nullptr || from->struct_size < kFirstSize<T>) return kNoStruct<T>;
  *to = {};
  std::memcpy(to, from, std::min(from->struct_size, sizeof(T)));
  return nullptr;
}

// Converts a type for which is_number_type() returns true.
constexpr NumberType number_type(kvant_type type) {
  static_assert(KVANT_BF16 == static_cast<int>(NumberType::bf16) &&
                KVANT_F32 == static_cast<int>(NumberType::f32) &&
                KVANT_F16 == static_cast<int>(NumberType::f16));
  return static_cast<NumberType>(type);
}

// Returns whether kernels take rows of `channels`, in addition to the rules of all devices.
constexpr bool fits_head(int channels, int head_dim) {
  return head_dim <= 256 || channels % 16 == 0;
}

inline Reason read_correction(const kvant_correction* from, kvant_correction* to) {
  if (const Reason reason = read_struct(from, to)) return reason;
  if (const Reason reason = device::fault_of_correction(*to)) return reason;
  return first_failing(
      {{is_aligned(to->states, 16), "correction: states is not 16-byte aligned"},
       {to->state_seq_stride % 4 == 0 && to->state_head_stride % 4 == 0 && to->state_page_stride % 4 == 0,
        "correction: strides of states must be multiples of 4"}});
}

}  // namespace kvant::cuda
