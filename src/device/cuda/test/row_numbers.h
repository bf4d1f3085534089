// Converts rows between floats and the bytes that the library's calls read and write in any number type.
// Tests keep floats and convert them for calls.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

inline std::vector<std::uint8_t> as_bytes(const std::vector<float>& numbers, kvant_type type) {
  if (type == KVANT_F32) {
    std::vector<std::uint8_t> bytes(numbers.size() * sizeof(float));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
  }
  std::vector<std::uint8_t> bytes;
  for (const float x : numbers) {
    const std::uint16_t bits = type == KVANT_F16 ? f16_from_float(x) : bf16_from_float(x);
    bytes.push_back(static_cast<std::uint8_t>(bits));
    bytes.push_back(static_cast<std::uint8_t>(bits >> 8));
  }
  return bytes;
}

// Returns number `i` of bytes that as_bytes() has made.
inline float number_at(const std::vector<std::uint8_t>& bytes, kvant_type type, std::size_t i) {
  if (type == KVANT_F32) {
    float x;
    std::memcpy(&x, bytes.data() + 4 * i, sizeof x);
    return x;
  }
  std::uint16_t bits;
  std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
  return type == KVANT_F16 ? float_from_f16(bits) : float_from_bf16(bits);
}

// Returns the number of `type` that is nearest to x.
inline float rounded_to(kvant_type type, float x) {
  return number_at(as_bytes({x}, type), type, 0);
}

// Returns the first n channels of rows with d channels each.
template <class T>
std::vector<T> first_channels(const std::vector<T>& rows, int d, int n) {
  std::vector<T> some;
  for (std::size_t first = 0; first < rows.size(); first += d)
    some.insert(some.end(), rows.begin() + static_cast<std::ptrdiff_t>(first),
                rows.begin() + static_cast<std::ptrdiff_t>(first) + n);
  return some;
}

}  // namespace kvant::cuda
