#include "format/bit_packing.h"

#include <algorithm>
#include <array>

#include "base/simd_clones.h"
#include "format/code_block.h"

namespace kvant {
namespace {

// Describes the last codes of a stream if they do not fill a block of kCodeBlock codes.
struct Remainder {
  std::size_t first;  // index of the first of these codes
  std::size_t n;      // number of codes, less than kCodeBlock
};
Remainder remainder_of(std::size_t n) {
  return {n - n % kCodeBlock, n % kCodeBlock};
}

}  // namespace

KVANT_SIMD_CLONES void pack_codes(const std::uint16_t* codes, std::size_t n, int bits, std::byte* packed) {
  const Remainder rest = remainder_of(n);
  with_code_bits(
      bits, [&](auto width) __attribute__((always_inline)) {
        constexpr int kBits = decltype(width)::value;
        for (std::size_t i = 0; i < rest.first; i += kCodeBlock) {
          pack_block<kBits>(codes + i, packed + i / kCodeBlock * kBits);
        }
        if (rest.n > 0) {
          std::array<std::uint16_t, kCodeBlock> padded{};
          std::array<std::byte, kMaxCodeBits> block;
          std::copy_n(codes + rest.first, rest.n, padded.begin());
          pack_block<kBits>(padded.data(), block.data());
          std::copy_n(block.begin(), packed_bytes(rest.n, kBits), packed + rest.first / kCodeBlock * kBits);
        }
      });
}

KVANT_SIMD_CLONES void unpack_codes(const std::byte* packed, std::size_t n, int bits, std::uint16_t* codes) {
  const Remainder rest = remainder_of(n);
  with_code_bits(
      bits, [&](auto width) __attribute__((always_inline)) {
        constexpr int kBits = decltype(width)::value;
        for (std::size_t i = 0; i < rest.first; i += kCodeBlock) {
          unpack_block<kBits>(packed + i / kCodeBlock * kBits, codes + i);
        }
        if (rest.n > 0) {
          std::array<std::uint16_t, kCodeBlock> padded;
          std::array<std::byte, kMaxCodeBits> block{};
          std::copy_n(packed + rest.first / kCodeBlock * kBits, packed_bytes(rest.n, kBits), block.begin());
          unpack_block<kBits>(block.data(), padded.data());
          std::copy_n(padded.begin(), rest.n, codes + rest.first);
        }
      });
}

}  // namespace kvant
