// Computes the levels of trellis codes (src/format/trellis_code.h) four at a time, in the bytes of a
// register. The four bytes belong to the values at the same place of four columns (trellis_place). A level is
// half the sum of two signed bytes. Both bytes are operands of products, so the sum of the products adds the
// bytes.
#pragma once

#include "device/cuda/pairs/weights.cuh"
#include "format/trellis_code.h"

namespace kvant::cuda {

__device__ __forceinline__ constexpr std::uint32_t each_byte(std::uint32_t x) {
  return x * 0x01010101U;
}

// Joins states in each byte. The high bits of `low` become the low 8 - Shift bits, and the first Shift bits
// of `high` lie above them.
template <int Shift>
__device__ __forceinline__ std::uint32_t join_bytes(std::uint32_t low, std::uint32_t high) {
  return select_bits<each_byte(0xff >> Shift)>(low >> Shift, high << (8 - Shift));
}
__device__ __forceinline__ std::uint32_t join_bytes(int shift, std::uint32_t low, std::uint32_t high) {
  switch (shift) {  // the shift is a compile-time constant
    case 1:
      return join_bytes<1>(low, high);
    case 2:
      return join_bytes<2>(low, high);
    case 3:
      return join_bytes<3>(low, high);
    case 4:
      return join_bytes<4>(low, high);
    case 5:
      return join_bytes<5>(low, high);
    case 6:
      return join_bytes<6>(low, high);
    case 7:
      return join_bytes<7>(low, high);
    default:
      return low;
  }
}

// Holds the codes in one lane as groups of four columns. Each row of bytes of a group is a word.
template <int Bits, int Groups, int Rows>
struct ColumnRows {
  static constexpr int kRows = Rows;
  std::uint32_t words[Groups * Rows];
  std::uint32_t before[Groups];  // bytes that precede the columns

  // Returns the states of value i of each column of a group. A state is the 8 bits that end with the value's
  // own bits.
  __device__ __forceinline__ std::uint32_t states(int group, int i) const {
    const int first = (i + 1) * Bits - 8;  // bit of the column at which the state begins
    const int row = first < 0 ? -1 : first / 8;
    const int shift = first - row * 8;
    const std::uint32_t low = row < 0 ? before[group] : words[group * kRows + row];
    return join_bytes(shift, low, shift == 0 ? 0 : words[group * kRows + row + 1]);
  }

  // Returns the states of value i of a group, shifted up by n bits, with undefined bits below. The upper bits
  // of a shifted state equal the state n / Bits values earlier, shifted by the rest of n. Only shifts by the
  // fold have already been computed for that earlier state.
  __device__ __forceinline__ std::uint32_t shifted(int group, int i, int n) const {
    constexpr int kFold = kTrellisCodes[Bits - 1].fold;
    const int before = n / Bits;
    const int left = n % Bits;
    return i + 1 >= before && (left == 0 || left == kFold) ? states(group, i - before) << left
                                                           : states(group, i) << n;
  }
};

// Holds the codes of some tokens, which are 128 * Times values in each lane.
template <int Bits, int Groups, int Times = 1>
struct TrellisColumns : ColumnRows<Bits, Groups, 4 * Bits * Times / Groups> {
  using ColumnRows<Bits, Groups, 4 * Bits * Times / Groups>::kRows;
  using ColumnRows<Bits, Groups, 4 * Bits * Times / Groups>::words;

  __device__ __forceinline__ explicit TrellisColumns(const uint4* pieces) {
#pragma unroll
    for (int i = 0; i < Bits * Times; ++i) {
      const uint4 piece = pieces[i * kLanes];
      words[4 * i] = piece.x;
      words[4 * i + 1] = piece.y;
      words[4 * i + 2] = piece.z;
      words[4 * i + 3] = piece.w;
    }
  }

  // Returns the last bytes of a group's columns in `lane`.
  __device__ __forceinline__ std::uint32_t last_bytes(int group, int lane) const {
    return __shfl_sync(~0U, words[(group + 1) * kRows - 1], lane);
  }
  __device__ __forceinline__ std::uint32_t own_last_bytes(int group) const {
    return words[(group + 1) * kRows - 1];
  }
};

// LevelFragment is the A operand of a product with levels. a[0] + a[1] is twice the level.
using LevelFragment = std::uint32_t[2][4];

// Computes the levels of the states x, one per byte. for_mix and for_fold are the states shifted by `mix` and
// `fold`, valid in the bits above the shift.
template <int Bits>
__device__ __forceinline__ void set_levels(std::uint32_t x, std::uint32_t for_mix, std::uint32_t for_fold,
                                           int reg, LevelFragment& a) {
  constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  const std::uint32_t mixed = x ^ (for_mix & each_byte(0xff << kCode.mix & 0xff));
  a[0][reg] = mixed;
  a[1][reg] = select_bits<each_byte(kCode.fold_mask)>(for_fold, mixed);
}

template <int Bits>
__device__ __forceinline__ void set_levels(std::uint32_t x, int reg, LevelFragment& a) {
  constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  set_levels<Bits>(x, x << kCode.mix, x << kCode.fold, reg, a);
}

// Sets the levels of value i of a group's columns.
template <int Bits, int Groups, int Rows>
__device__ __forceinline__ void set_levels(const ColumnRows<Bits, Groups, Rows>& columns, int group, int i,
                                           int reg, LevelFragment& a) {
  constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  set_levels<Bits>(columns.states(group, i), columns.shifted(group, i, kCode.mix),
                   columns.shifted(group, i, kCode.fold), reg, a);
}

}  // namespace kvant::cuda
