// mix_bits is the finalizer of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
// generators"). The pseudorandom numbers of mix_bits are the same on every machine.
#pragma once

#include <cstdint>

namespace kvant {

// Callers multiply indices by this constant, which keeps the arguments of mix_bits for neighbouring indices
// far apart.
inline constexpr std::uint64_t kGoldenRatio64 = 0x9e3779b97f4a7c15U;

inline std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace kvant
