// Checks the arguments that callers pass to the libraries that implement kvant/kvant.h. All of these
// libraries share the code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kvant/kvant.h"

namespace kvant::device {

// A Reason is a sentence in static storage, so a refusal neither allocates memory nor builds a string. A null
// Reason means that nothing is wrong.
using Reason = const char*;

struct Condition {
  bool holds;
  Reason otherwise;
};

// Returns the reason of the first condition that does not hold, or null if all hold.
inline Reason first_failing(std::initializer_list<Condition> conditions) {
  for (const Condition& condition : conditions)
    if (!condition.holds) return condition.otherwise;
  return nullptr;
}

inline bool is_aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

// Returns why a program is refused that was compiled with a kvant.h of this version, or null.
constexpr Reason fault_of_version(int version) {
  return version / 1000 == KVANT_VERSION / 1000 && version <= KVANT_VERSION
             ? nullptr
             : "the program was compiled with a kvant.h of another major version, or of a later minor one, "
               "than "
               "this library's (kvant_version): install the header and the library of one release";
}

// kNoStruct is the reason for refusing a structure that is null or has no known version.
template <class T>
inline constexpr Reason kNoStruct = nullptr;
#define KVANT_NAME_STRUCT(type) \
  template <>                   \
  inline constexpr Reason kNoStruct<type> = #type " is null, or its struct_size is not its size"
KVANT_NAME_STRUCT(kvant_decode_shape);
KVANT_NAME_STRUCT(kvant_decode_lengths);
KVANT_NAME_STRUCT(kvant_decode_layer);
KVANT_NAME_STRUCT(kvant_correction);
KVANT_NAME_STRUCT(kvant_new_rows);
KVANT_NAME_STRUCT(kvant_seal_range);
KVANT_NAME_STRUCT(kvant_page_metrics);
KVANT_NAME_STRUCT(kvant_dequantization);
KVANT_NAME_STRUCT(kvant_partial);
KVANT_NAME_STRUCT(kvant_transformation);
KVANT_NAME_STRUCT(kvant_prompt_shape);
KVANT_NAME_STRUCT(kvant_prompt_pages);
KVANT_NAME_STRUCT(kvant_prompt);
KVANT_NAME_STRUCT(kvant_token_weights);
KVANT_NAME_STRUCT(kvant_protected_rows);
KVANT_NAME_STRUCT(kvant_plan);
KVANT_NAME_STRUCT(kvant_limits);
KVANT_NAME_STRUCT(kvant_step_table);
KVANT_NAME_STRUCT(kvant_step);
#undef KVANT_NAME_STRUCT

constexpr bool is_number_type(kvant_type type) {
  return type == KVANT_BF16 || type == KVANT_F32 || type == KVANT_F16;
}
constexpr int channels_or_all(int channels, int head_dim) {
  return channels == 0 ? head_dim : channels;
}

}  // namespace kvant::device
