// Searches for trellis codes of 4 bits per value (seal_trellis.cuh) for two tokens at once. The costs of the
// two tokens are the halves of a register. On Hopper, one instruction adds both halves and takes both minima.
//
// The squared errors of both tokens take one product. Around a center c,
//   (x - l)^2 = (x - c)^2 - 2 (l - c) (x - c) + (l - c)^2,
// where all levels l near the center share the first term, and two levels share the last term. Distances to a
// center are limited, so costs do not wrap around. Levels far from a value then cost too little, but still
// too much for any path to take them.
//
// A half has the cost in bits 3 to 15 and the number of the node's parent in bits 0 to 3, so bit 3 belongs to
// both. The value and the parent determine bit 3 of the error, because a level is even or odd like its
// parent. The number of the parent can therefore be restored when a path is traced.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "base/host_device.h"
#include "device/cuda/common/ptx.cuh"
#include "format/trellis_code.h"

namespace kvant::cuda {

inline constexpr int kPairedBits = 4;  // bits per value

struct PairedTrellis {
  static constexpr TrellisCode kCode = kTrellisCodes[kPairedBits - 1];
  static constexpr int kNodes = kTrellisStates >> kPairedBits;
  static constexpr int kWords = kNodes / 4;  // words of the choices of a step, for both tokens

  // Values are integers with kUnits units per level. An error is a squared difference in units times kScale.
  static constexpr int kUnits = 2;
  static constexpr int kScale = 2;
  // Distances are in levels. Larger distances from a center count as kReach, a center has the levels within
  // kNear, and larger values count as kMax.
  static constexpr int kReach = 64;
  static constexpr int kNear = 8;
  static constexpr int kMax = 135;
  // The error at the distance to a center is rounded to a multiple of kErrorStep, so bit 3 of the error is
  // zero.
  static constexpr int kErrorStep = 16;
  // kRoot and kMinusReach are half-precision factors, repeated in both halves. A distance in units times
  // 2^-24 is multiplied by kRoot, and its square is then kScale / kErrorStep of the squared distance, times
  // 2^-24. kMinusReach is the product of -kReach in units (-128), kRoot and 2^-24. The product is exact.
  static constexpr std::uint32_t kRoot = 0x65a865a8;        // 1448
  static constexpr std::uint32_t kMinusReach = 0xa1a8a1a8;  // -1448 * 128 * 2^-24
  static constexpr int kLargestError =
      kScale * kUnits * kUnits * (kReach + kNear) * (kReach + kNear) + 2 * kErrorStep;
  // Limits costs before an error is added.
  static constexpr int kMostCost = 0xffff - kLargestError - kNodes;
  static_assert(kMostCost > 0);
  static constexpr int kSteps = 4;  // steps after which the least cost is subtracted
};

// Describes a state and the parts of its error that it shares with the previous state in the order of
// order_by_center().
struct PairedState {
  int state, center, from_center;  // center of its level, and distance of the level from the center
  bool new_center, new_distance, new_level;
  bool first;  // no earlier state leads to its node
};

// Orders states by center, distance from the center, and level, so neighbours share parts of the error.
constexpr std::array<PairedState, kTrellisStates> order_by_center() {
  using T = PairedTrellis;
  std::array<PairedState, kTrellisStates> order{};
  std::array<bool, kTrellisStates> seen{};
  int n = 0;
  // Centers are even, because bit 3 of errors depends on this. The first level of a center is kNear below the
  // center.
  for (int center = -128 + T::kNear; center <= 128 - T::kNear; center += 2 * T::kNear) {
    bool new_center = true;
    for (int distance = 0; distance <= T::kNear; ++distance) {
      bool new_distance = true;
      for (const int sign : {1, -1}) {
        // This level belongs to the next center, or it is the center again.
        if (distance == (sign > 0 ? T::kNear : 0)) continue;
        bool new_level = true;
        for (int state = 0; state < kTrellisStates; ++state) {
          if (state_level(T::kCode, state) != center + sign * distance) continue;
          const bool first = !seen[state >> kPairedBits];
          seen[state >> kPairedBits] = true;
          order[n++] = {state, center, sign * distance, new_center, new_distance, new_level, first};
          new_center = new_distance = new_level = false;
        }
      }
    }
  }
  return order;
}
inline constexpr std::array<PairedState, kTrellisStates> kByCenter = order_by_center();
template <std::size_t I>
struct StateByCenter {
  static constexpr PairedState kState = kByCenter[I];
  static_assert(kState.center % 2 == 0 && (kState.center + kState.from_center - kState.state) % 2 == 0);
};

// Returns x in both halves of a word.
KVANT_HOST_DEVICE constexpr std::uint32_t both(int x) {
  return static_cast<std::uint32_t>(x & 0xffff) * 0x10001U;
}

// Selects four of the eight bytes of a and b, one for each of the lowest four nibbles of `selector`. If a
// nibble's highest bit is set, the result is the byte's highest bit, replicated eight times.
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b,
                                                       std::uint32_t selector) {
  std::uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
}

// Computes a * b + c as one operation. For one product with several c, the compiler would emit one product
// and several sums, but the unit for sums is the bottleneck.
__device__ __forceinline__ std::uint32_t multiply_add(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t y;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}

// Holds the parents that nodes have chosen in a step, with four nodes in each word. The lower half of a word
// belongs to the first token, and the upper half to the second.
struct PairedChoices {
  std::uint32_t words[PairedTrellis::kWords];

  // Returns the choice of a node, where word(i) is word i and `second` selects the token. Nodes are unsigned,
  // because division of signed numbers takes more operations.
  template <class Word>
  static __device__ __forceinline__ unsigned of(unsigned node, int second, const Word& word) {
    return word(node / 4) >> (16 * second + 4 * (node % 4)) & (PairedTrellis::kNodes - 1);
  }
};

// Records for each node whether a token's path to the node comes from one particular node of the past. Each
// node has a byte. If the path comes from that node of the past, the lower seven bits of the byte are 1, and
// otherwise 0.
class PathOrigins {
 public:
  __device__ __forceinline__ explicit PathOrigins(unsigned from) {
#pragma unroll
    for (unsigned four = 0; four < kFours; ++four)
      from_[four] = from / 4 == four ? 0xffU << (from % 4 * 8) : 0;
  }

  // Advances by a step. The lower half of word(i) has a token's choices of the step.
  template <class Word>
  __device__ __forceinline__ void advance(const Word& word) {
    std::uint32_t next[kFours];
    // The highest bit of a choice says in which half of the nodes the parent lies.
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
      const std::uint32_t selector = word(four);
      // The bytes are 0x7f for parents in the lower half, and 0 for other parents.
      const std::uint32_t is_lower = permute_bytes(0x7f7f7f7f, 0x7f7f7f7f, selector);
      next[four] = (permute_bytes(from_[0], from_[1], selector) & is_lower) |
                   (permute_bytes(from_[2], from_[3], selector ^ 0x8888) & ~is_lower);
    }
#pragma unroll
    for (int four = 0; four < kFours; ++four) from_[four] = next[four];
  }

  __device__ __forceinline__ bool of(int node) const {
    return (from_[node / 4] >> (node % 4 * 8) & 1) != 0;
  }

 private:
  static constexpr int kFours = PairedTrellis::kNodes / 4;
  std::uint32_t from_[kFours];
};

// PairedCosts holds the costs of the cheapest path to each node, for two tokens.
class PairedCosts {
 public:
  using T = PairedTrellis;

  // `one` must be 1, in a form that the compiler does not recognize as a constant (see error_step_).
  __device__ explicit PairedCosts(std::uint32_t one)
      : error_step_(T::kErrorStep * one),
        farthest_(both(2 * T::kReach * T::kUnits) * one),
        not_number_(~kNumber * one) {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] = both(node);
  }

  // Converts a value of each token, `first` and `second`, from levels to units.
  static __device__ __forceinline__ std::uint32_t in_units(float first, float second) {
    const auto of_one = [](float x) {
      return static_cast<std::uint32_t>(__float2int_rn(fminf(fmaxf(x, -T::kMax), T::kMax) * T::kUnits));
    };
    return (of_one(first) & 0xffff) | of_one(second) << 16;
  }

  // Extends the paths by a value of each token, in units.
  __device__ __forceinline__ PairedChoices step(std::uint32_t x) {
    std::uint32_t next[T::kNodes];
    Errors errors;
    take_states(x, errors, next, std::make_index_sequence<kTrellisStates>());
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] = (next[node] & not_number_) | both(node);
    return choices_of(next, x);
  }

  // Forbids paths that do not come from the nodes for which `first` and `second` were made.
  __device__ __forceinline__ void forbid_others(const PathOrigins& first, const PathOrigins& second) {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) {
      const std::uint32_t allowed = (first.of(node) ? 0xffffU : 0) | (second.of(node) ? 0xffff0000U : 0);
      const std::uint32_t most = both((T::kMostCost & ~(T::kNodes - 1)) | node);
      costs_[node] = (costs_[node] & allowed) | (most & ~allowed);
    }
  }

  // Subtracts each token's least cost from the token's costs.
  __device__ __forceinline__ void lower() {
    const std::uint32_t least = this->least() & ~kNumber;
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] -= least;
  }

  // Returns the number of each token's cheapest node, packed like costs.
  __device__ __forceinline__ std::uint32_t cheapest() const {
    return least() & kNumber;
  }

 private:
  // kNumber masks the lowest bits of a cost, which hold the node's number.
  static constexpr std::uint32_t kNumber = both(T::kNodes - 1);

  // Errors holds the errors of levels around the current center, packed like costs.
  struct Errors {
    std::uint32_t from_center;  // error of the first token plus 2^16 times that of the second
    std::uint32_t of_center;    // squared distance to the center plus 1, in units of kErrorStep
    std::uint32_t of_distance, of_level;

    template <int Center>
    __device__ __forceinline__ void approach(std::uint32_t x, std::uint32_t farthest) {
      constexpr int kReach = T::kReach * T::kUnits;
      // Subnormal half-precision numbers have the bits of integers. `above` is the distance plus kReach,
      // which is never negative. `distance` becomes the error plus one, so rounding does not make errors
      // negative.
      const std::uint32_t above = __viaddmin_s16x2_relu(x, both(kReach - Center * T::kUnits), farthest);
      const std::uint32_t distance = fma_half2(above, T::kRoot, T::kMinusReach);
      of_center = fma_half2(distance, distance, both(1));
      from_center = above - both(kReach);
      // Without this line the compiler would multiply `above` and emit one more product for each level.
      asm("" : "+r"(from_center));
    }
  };

  template <std::size_t I>
  __device__ __forceinline__ void take_state(std::uint32_t x, Errors& errors,
                                             std::uint32_t (&next)[T::kNodes]) const {
    constexpr PairedState kState = StateByCenter<I>::kState;
    constexpr int kNode = kState.state >> kPairedBits;
    constexpr int kFar = kState.from_center * T::kUnits;
    if constexpr (kState.new_center) errors.template approach<kState.center>(x, farthest_);
    if constexpr (kState.new_distance)
      errors.of_distance = multiply_add(errors.of_center, error_step_, both(T::kScale * kFar * kFar));
    if constexpr (kState.new_level)
      errors.of_level =
          errors.of_distance + errors.from_center * static_cast<std::uint32_t>(-2 * T::kScale * kFar);
    next[kNode] = __viaddmin_u16x2(costs_[kState.state % T::kNodes], errors.of_level,
                                   kState.first ? both(T::kMostCost) : next[kNode]);
  }
  template <std::size_t... I>
  __device__ __forceinline__ void take_states(std::uint32_t x, Errors& errors,
                                              std::uint32_t (&next)[T::kNodes],
                                              std::index_sequence<I...>) const {
    (take_state<I>(x, errors, next), ...);
  }

  static __device__ __forceinline__ PairedChoices choices_of(const std::uint32_t (&next)[T::kNodes],
                                                             std::uint32_t x) {
    // For an even value, the errors of odd levels have bit 3 set.
    const std::uint32_t is_even = (~x & both(1)) * 0x8888U;
    PairedChoices choices;
#pragma unroll
    for (int word = 0; word < T::kWords; ++word) {
      // Each word has the lowest bytes of two nodes, for both tokens.
      const std::uint32_t even = permute_bytes(next[4 * word], next[4 * word + 2], 0x6240);
      const std::uint32_t odd = permute_bytes(next[4 * word + 1], next[4 * word + 3], 0x6240);
      const std::uint32_t sums = select_bits<0x0f0f0f0f>(even, odd << 4);
      choices.words[word] = sums ^ (sums << 3 & is_even);
    }
    return choices;
  }

  __device__ __forceinline__ std::uint32_t least() const {
    std::uint32_t least = __vminu2(costs_[0], costs_[1]);
#pragma unroll
    for (int node = 2; node < T::kNodes; node += 2)
      least = __vimin3_u16x2(least, costs_[node], costs_[node + 1]);
    return least;
  }

  // error_step_, farthest_ and not_number_ are kErrorStep, the largest value of `above` in approach(), and
  // ~kNumber. If they were constants, one operation with two constants would become two operations.
  std::uint32_t error_step_, farthest_, not_number_;
  std::uint32_t costs_[T::kNodes];
};

}  // namespace kvant::cuda
