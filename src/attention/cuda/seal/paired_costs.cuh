// The search for trellis codes (seal_trellis.cuh) of two tokens at a time, whose costs are the halves of a
// register: Hopper adds and takes the minimum of both in one instruction. For 2 to 4 bits a value.
//
// A cost is 16 bits wide; its lowest bits say which of its parents a node has it from. For both tokens
// together a squared error takes one multiplication: around a center c, (x - l)^2 = (x - c)^2 - 2 (l - c) (x
// - c) + (l - c)^2, of which the first term is common to levels near the center, and the last to two of them.
// Distances to a center are limited, so that no cost wraps; levels that are far from a value cost less than
// they should then, but more than any path takes.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "attention/cuda/device/ptx.cuh"
#include "base/host_device.h"
#include "format/trellis_code.h"

namespace kvant::cuda {

template <int Bits>
struct PairedTrellis {
  static_assert(Bits >= 2 && Bits <= 4);
  static constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  static constexpr int kNodes = kTrellisStates >> Bits;
  static constexpr int kParents = 1 << Bits;
  // Words of a step's choices, of both tokens.
  static constexpr int kWords = Bits == 4 ? 4 : 8;

  // Values are integers, of which a level has kUnits; an error is a squared difference times kScale. So
  // errors are, but for what all have in common, multiples of 8, and with two bits of 4.
  static constexpr int kUnits = 2;
  static constexpr int kScale = Bits == 2 ? 1 : 2;
  // In levels: what is farther from a center counts as at that distance; levels belong to a center so far
  // from them; values beyond are taken for that.
  static constexpr int kReach = Bits == 2 ? 80 : 64;
  static constexpr int kNear = Bits == 2 ? 16 : Bits == 3 ? 12 : 8;
  static constexpr int kMax = Bits == 2 ? 127 : Bits == 3 ? 127 : 135;
  // The error at the distance to a center is rounded to a multiple of this.
  static constexpr int kErrorStep = 16;
  // In half precision, twice: what a unit times 2^-24 is multiplied by, so that its square is kScale /
  // kErrorStep times 2^-24, and -kReach in the same measure.
  static constexpr std::uint32_t kRoot = Bits == 2 ? 0x64006400 : 0x65a865a8;
  static constexpr std::uint32_t kMinusReach = Bits == 2 ? 0xa100a100 : 0xa1a8a1a8;
  static constexpr int kLargestError =
      kScale * kUnits * kUnits * (kReach + kNear) * (kReach + kNear) + 2 * kErrorStep;
  // Costs are at most so much, before an error is added.
  static constexpr int kMostCost = 0xffff - kLargestError - kParents;
  static_assert(kMostCost > 0);
  static constexpr int kSteps = Bits == 2 ? 8 : 4;  // after which the least cost is subtracted
};

// A state, and what its level has in common with the one before it in order.
struct PairedState {
  int state, center, from_center;  // of its level
  bool new_center, new_distance, new_level;
  bool first;  // no state before it leads to its node
};

// By centers, the distance to them, and levels.
template <int Bits>
constexpr std::array<PairedState, kTrellisStates> order_by_center() {
  using T = PairedTrellis<Bits>;
  std::array<PairedState, kTrellisStates> order{};
  std::array<bool, kTrellisStates> seen{};
  int n = 0;
  int lowest = 128, highest = -128;
  for (int state = 0; state < kTrellisStates; ++state) {
    const int level = state_level(T::kCode, state);
    lowest = level < lowest ? level : lowest;
    highest = level > highest ? level : highest;
  }
  for (int center = lowest + T::kNear; center - T::kNear <= highest; center += 2 * T::kNear) {
    bool new_center = true;
    for (int distance = 0; distance <= T::kNear; ++distance) {
      bool new_distance = true;
      for (int sign = distance == T::kNear ? -1 : 1; sign >= (distance == 0 ? 1 : -1); sign -= 2) {
        bool new_level = true;
        for (int state = 0; state < kTrellisStates; ++state) {
          if (state_level(T::kCode, state) != center + sign * distance) continue;
          const bool first = !seen[state >> Bits];
          seen[state >> Bits] = true;
          order[n++] = {state, center, sign * distance, new_center, new_distance, new_level, first};
          new_center = new_distance = new_level = false;
        }
      }
    }
  }
  return order;
}
template <int Bits>
inline constexpr std::array<PairedState, kTrellisStates> kByCenter = order_by_center<Bits>();
template <int Bits, std::size_t I>
struct StateByCenter {
  static constexpr PairedState kState = kByCenter<Bits>[I];
};

// x in both halves.
KVANT_HOST_DEVICE constexpr std::uint32_t both(int x) {
  return static_cast<std::uint32_t>(x & 0xffff) * 0x10001U;
}

// The choices of a step: a half of each word is the first token's, the other the second's. Nibbles lie as
// PathOrigins wants them: those of four nodes with the same parents side by side, with two bits two such
// fours.
template <int Bits>
struct PairedChoices {
  using T = PairedTrellis<Bits>;
  std::uint32_t words[T::kWords];

  static __device__ constexpr int word_of(int node) {
    return Bits == 4 ? node / 4 : Bits == 3 ? node % 4 * 2 + node / 16 : node % 16 / 2;
  }
  static __device__ constexpr int shift_of(int node) {
    return Bits == 4 ? node % 4 * 4 : Bits == 3 ? node / 4 % 4 * 4 : node / 16 * 4 + node % 2 * 2;
  }
  // Of a node; word(i): the ith of the words, second: the token.
  template <class Word>
  static __device__ __forceinline__ int of(int node, int second, const Word& word) {
    return static_cast<int>(word(word_of(node)) >> (16 * second + shift_of(node))) & (T::kParents - 1);
  }
};

// Of the eight bytes of a and b those that the lowest four nibbles of `selector` name; a nibble's highest bit
// asks for the byte's highest bit, eight times.
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b,
                                                       std::uint32_t selector) {
  std::uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
}

// For each node, a byte: whether a token's path to it comes from one node of the past, all bits or none.
template <int Bits>
class PathOrigins {
 public:
  using T = PairedTrellis<Bits>;

  __device__ __forceinline__ explicit PathOrigins(int from) {
#pragma unroll
    for (int four = 0; four < kFours; ++four) from_[four] = from / 4 == four ? 0xffU << (from % 4 * 8) : 0;
  }

  // A step on; word(i): a token's choices of that step, in the lower half of a word.
  template <class Word>
  __device__ __forceinline__ void advance(const Word& word) {
    std::uint32_t next[kFours];
    if constexpr (Bits == 4) {
      // A nibble's upper bit says which eight nodes its parent is of; where it is set, permute_bytes() gives
      // a byte's highest bit eight times, which serves as a mask here, and else is not used.
#pragma unroll
      for (int four = 0; four < 4; ++four) {
        const std::uint32_t selector = word(four);
        const std::uint32_t is_lower = permute_bytes(0x7f7f7f7f, 0x7f7f7f7f, selector);
        next[four] = (permute_bytes(from_[0], from_[1], selector) & is_lower) |
                     (permute_bytes(from_[2], from_[3], selector ^ 0x8888) & ~is_lower);
      }
    } else if constexpr (Bits == 3) {
      std::uint32_t of_parents[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        of_parents[i] = permute_bytes(from_[i / 2 * 2], from_[i / 2 * 2 + 1], word(i));
#pragma unroll
      for (int half = 0; half < 2; ++half)
        transpose(of_parents[half], of_parents[2 + half], of_parents[4 + half], of_parents[6 + half],
                  next[4 * half], next[4 * half + 1], next[4 * half + 2], next[4 * half + 3]);
    } else {
      std::uint32_t of_parents[16];
#pragma unroll
      for (int i = 0; i < 16; ++i)
        of_parents[i] = permute_bytes(from_[i], 0, word(i / 2) >> (i % 2 * 2) & 0x3333);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        transpose(of_parents[4 * i], of_parents[4 * i + 1], of_parents[4 * i + 2], of_parents[4 * i + 3],
                  next[i], next[i + 4], next[i + 8], next[i + 12]);
    }
#pragma unroll
    for (int four = 0; four < kFours; ++four) from_[four] = next[four];
  }

  __device__ __forceinline__ bool of(int node) const {
    return (from_[node / 4] >> (node % 4 * 8) & 1) != 0;
  }

 private:
  static constexpr int kFours = T::kNodes / 4;

  // Byte j of the ith becomes byte i of the jth.
  static __device__ __forceinline__ void transpose(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                   std::uint32_t d, std::uint32_t& first,
                                                   std::uint32_t& second, std::uint32_t& third,
                                                   std::uint32_t& fourth) {
    const std::uint32_t ab = permute_bytes(a, b, 0x5140), cd = permute_bytes(c, d, 0x5140);
    const std::uint32_t ab_upper = permute_bytes(a, b, 0x7362), cd_upper = permute_bytes(c, d, 0x7362);
    first = permute_bytes(ab, cd, 0x5410);
    second = permute_bytes(ab, cd, 0x7632);
    third = permute_bytes(ab_upper, cd_upper, 0x5410);
    fourth = permute_bytes(ab_upper, cd_upper, 0x7632);
  }

  std::uint32_t from_[kFours];
};

// The costs of the cheapest paths of two tokens to each node.
template <int Bits>
class PairedCosts {
 public:
  using T = PairedTrellis<Bits>;

  // one: 1, of which the compiler doesn't know that.
  __device__ explicit PairedCosts(std::uint32_t one) : one_(one) {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] = both(node & kChoice);
  }

  // A value in levels as it is searched for.
  static __device__ __forceinline__ int in_units(float x) {
    return __float2int_rn(fminf(fmaxf(x, -T::kMax), T::kMax) * T::kUnits);
  }

  // x: of both tokens, in_units.
  __device__ __forceinline__ PairedChoices<Bits> step(int x0, int x1) {
    const std::uint32_t x = (static_cast<std::uint32_t>(x0) & 0xffff) | static_cast<std::uint32_t>(x1) << 16;
    std::uint32_t next[T::kNodes];
    Errors errors;
    take_states(x, errors, next, std::make_index_sequence<kTrellisStates>());
    const PairedChoices<Bits> choices = choices_of(next, x);
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node)
      costs_[node] = (next[node] & ~both(kChoice)) | both(node & kChoice);
    return choices;
  }

  // Forbids paths that don't come from where they should.
  __device__ __forceinline__ void forbid_others(const PathOrigins<Bits>& first,
                                                const PathOrigins<Bits>& second) {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) {
      const std::uint32_t allowed = (first.of(node) ? 0xffffU : 0) | (second.of(node) ? 0xffff0000U : 0);
      costs_[node] =
          (costs_[node] & allowed) | (both((T::kMostCost & ~kChoice) | (node & kChoice)) & ~allowed);
    }
  }

  // Subtracts the least cost of each token.
  __device__ __forceinline__ void lower() {
    const std::uint32_t least = least_of([](std::uint32_t cost, int) { return cost; }) & ~both(kChoice);
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] -= least;
  }

  // The cheapest nodes, packed as costs are, up to what their numbers' bits are worth.
  __device__ __forceinline__ std::uint32_t cheapest() const {
    constexpr std::uint32_t kNumber = both(T::kNodes - 1);
    return kNumber & least_of([](std::uint32_t cost, int node) { return (cost & ~kNumber) | both(node); });
  }

 private:
  static constexpr int kChoice = T::kParents - 1;

  // Of levels around one center after another, packed as costs are.
  struct Errors {
    std::uint32_t from_center;  // a sum: the first token's, and the second's times 2^16
    std::uint32_t of_center, of_distance, of_level;

    template <int Center>
    __device__ __forceinline__ void approach(std::uint32_t x) {
      constexpr int kReach = T::kReach * T::kUnits;
      // Subnormal numbers of half precision, whose bits are integers: the distance + kReach; the error. It is
      // one more, so that errors are not negative where it has been rounded.
      const std::uint32_t above =
          __viaddmin_s16x2_relu(x, both(kReach - Center * T::kUnits), both(2 * kReach));
      const std::uint32_t distance = fma_half2(above, T::kRoot, T::kMinusReach);
      of_center = fma_half2(distance, distance, both(1)) * T::kErrorStep;
      from_center = above - both(kReach);
    }
  };

  template <std::size_t I>
  __device__ __forceinline__ void take_state(std::uint32_t x, Errors& errors,
                                             std::uint32_t (&next)[T::kNodes]) const {
    constexpr PairedState kState = StateByCenter<Bits, I>::kState;
    constexpr int kNode = kState.state >> Bits;
    constexpr int kFar = kState.from_center;
    if constexpr (kState.new_center) errors.template approach<kState.center>(x);
    if constexpr (kState.new_distance)
      // A product, as the unit that adds is the busier one.
      errors.of_distance = errors.of_center + one_ * both(T::kScale * T::kUnits * T::kUnits * kFar * kFar);
    if constexpr (kState.new_level)
      errors.of_level = errors.of_distance +
                        errors.from_center * static_cast<std::uint32_t>(-2 * T::kScale * T::kUnits * kFar);
    next[kNode] = __viaddmin_u16x2(costs_[kState.state % T::kNodes], errors.of_level,
                                   kState.first ? both(T::kMostCost) : next[kNode]);
  }
  template <std::size_t... I>
  __device__ __forceinline__ void take_states(std::uint32_t x, Errors& errors,
                                              std::uint32_t (&next)[T::kNodes],
                                              std::index_sequence<I...>) const {
    (take_state<I>(x, errors, next), ...);
  }

  static __device__ __forceinline__ PairedChoices<Bits> choices_of(const std::uint32_t (&next)[T::kNodes],
                                                                   std::uint32_t x) {
    PairedChoices<Bits> choices;
    if constexpr (Bits == 4) {
      const std::uint32_t of_even = (~x & both(1)) * 0x8888U;
#pragma unroll
      for (int word = 0; word < T::kWords; ++word) {
        // Both tokens' lowest bytes of two nodes.
        const std::uint32_t even = permute_bytes(next[4 * word], next[4 * word + 2], 0x6240);
        const std::uint32_t odd = permute_bytes(next[4 * word + 1], next[4 * word + 3], 0x6240);
        const std::uint32_t all = select_bits<0x0f0f0f0f>(even, odd << 4);
        choices.words[word] = all ^ (all << 3 & of_even);
      }
    } else {
#pragma unroll
      for (std::uint32_t& word : choices.words) word = 0;
#pragma unroll
      for (int node = 0; node < T::kNodes; ++node)
        choices.words[PairedChoices<Bits>::word_of(node)] += (next[node] & both(kChoice))
                                                             << PairedChoices<Bits>::shift_of(node);
    }
    return choices;
  }

  template <class Key>
  __device__ __forceinline__ std::uint32_t least_of(const Key& key) const {
    std::uint32_t least = key(costs_[0], 0);
    least = __vminu2(least, key(costs_[1], 1));
#pragma unroll
    for (int node = 2; node < T::kNodes; node += 2)
      least = __vimin3_u16x2(least, key(costs_[node], node), key(costs_[node + 1], node + 1));
    return least;
  }

  std::uint32_t one_;
  std::uint32_t costs_[T::kNodes];
};

}  // namespace kvant::cuda
