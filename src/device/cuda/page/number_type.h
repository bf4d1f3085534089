// The types of numbers in rows outside of pages: queries, keys, values and outputs.
#pragma once

namespace kvant::cuda {

enum class NumberType : int { bf16, f32, f16 };  // with the values of kvant_type

constexpr int bytes_of(NumberType type) {
  return type == NumberType::f32 ? 4 : 2;
}

}  // namespace kvant::cuda
