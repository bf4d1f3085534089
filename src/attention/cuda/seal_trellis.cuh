// Trellis-coded pages (tcq<B>, src/format/trellis.h): a thread finds the best path of a token by the Viterbi
// algorithm, with the costs of all nodes in registers. (A node is what a state shares with its successors:
// its upper 8 - B bits; src/format/trellis_viterbi.h.) A CTA encodes a page.
//
// Costs are whole numbers, whose lowest bits say which of its parents a node has its cost from: so a minimum
// of sums finds both. The square of a number that is a multiple of 2^-74 is a multiple of 2^-148, a subnormal
// number, whose bits are those of a whole number.
//
// Choices of the last steps are kept in a ring. Paths to all nodes have merged long before its end, so that
// there the best path's codes are certain enough to be written.
#pragma once

#include <array>
#include <utility>

#include "attention/cuda/seal_page.cuh"
#include "format/trellis_code.h"

namespace kvant::cuda {

inline constexpr int kTrellisThreads = kTokens;
inline constexpr int kRunIn = 12;         // values before the seam that choose its node
inline constexpr int kEmittedValues = 8;  // at a time: whole bytes of codes

template <int Bits>
struct Trellis {
  static constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  static constexpr int kNodes = kTrellisStates >> Bits;
  static constexpr int kParentBits = Bits < 4 ? Bits : kTrellisBits - Bits;
  static constexpr int kParents = 1 << kParentBits;                      // of a node
  static constexpr int kBetween = kTrellisStates / (kNodes * kParents);  // states from a node to another
  static constexpr int kWordNodes = Bits == 1 ? 32 : Bits == 2 ? 16 : kNodes < 8 ? kNodes : 8;
  static constexpr int kWords = kNodes / kWordNodes;  // of the choices of a step
  static constexpr int kRing = Bits == 1 ? 48 : 32;   // steps: of a path that may still change, and 8

  // What levels and values are multiplied by before they are rounded, and the unit of the rounded numbers: so
  // that bits of squares end with zeros for the choices, and end where subnormal numbers do.
  static constexpr float kFine = Bits == 4 ? 2 : 4;
  static constexpr float kUnit = (Bits == 4 ? 4 : 2) * 0x1p-74F;
  static constexpr float kMost = 234;  // levels: values beyond are taken for that
};

// States in an order that brings equal levels together, which share a square; for one bit, whose levels are
// all different, those of common parents, which can be forgotten after them.
struct StateOrder {
  std::array<int, kTrellisStates> states;
  std::array<bool, kTrellisStates> first;  // whether no state before it leads to its node
};
template <int Bits>
constexpr StateOrder order_states() {
  StateOrder order{};
  int n = 0;
  if constexpr (Bits == 1) {
    for (int parent = 0; parent < Trellis<Bits>::kNodes; parent += 2)
      for (const int state : {parent, parent + 1, parent + 128, parent + 129}) order.states[n++] = state;
  } else {
    for (int level = -128; level < 128; ++level)
      for (int state = 0; state < kTrellisStates; ++state)
        if (state_level(Trellis<Bits>::kCode, state) == level) order.states[n++] = state;
  }
  std::array<bool, kTrellisStates> seen{};
  for (n = 0; n < kTrellisStates; ++n) {
    bool& node_seen = seen[order.states[n] >> Bits];
    order.first[n] = !node_seen;
    node_seen = true;
  }
  return order;
}
template <int Bits>
inline constexpr StateOrder kStateOrder = order_states<Bits>();

// The Ith of the states in order.
template <int Bits, int I>
struct OrderedState {
  static constexpr int kState = kStateOrder<Bits>.states[I];
  static constexpr bool kFirst = kStateOrder<Bits>.first[I];
};

template <int Bits, int State>
inline constexpr float kStateLevel =
    static_cast<float>(state_level(Trellis<Bits>::kCode, State)) * Trellis<Bits>::kFine* Trellis<Bits>::kUnit;

// The cost of the cheapest path to each node.
template <int Bits>
class PathCosts {
 public:
  using T = Trellis<Bits>;

  __device__ PathCosts() {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] = node & kChoice;
  }

  // x: a value in the unit of levels.
  __device__ void step(float x) {
    int next[T::kNodes];
    if constexpr (T::kBetween == 1) {
      take_states(x, next, std::make_index_sequence<kTrellisStates>());
    } else {
      take_branches(x, next, std::make_index_sequence<T::kNodes * T::kParents>());
    }
#pragma unroll
    for (int i = 0; i < T::kWords; ++i) choices_[i] = 0;
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) {
      std::uint32_t& word = choices_[node / T::kWordNodes];
      word = __funnelshift_r(word, static_cast<std::uint32_t>(next[node]), T::kParentBits);
      costs_[node] = (next[node] & ~kChoice) | (node & kChoice);
    }
  }

  // Of the last step: a node's parent's lowest bits, in the words of 32 bits that hold them all.
  __device__ const std::uint32_t (&choices() const)[T::kWords] {
    return choices_;
  }
  static __device__ int choice(std::uint32_t word, int node) {
    return static_cast<int>(word >> (32 - T::kParentBits * (T::kWordNodes - node % T::kWordNodes))) & kChoice;
  }

  __device__ int cheapest() const {
    int best = 0x7fffffff;
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) best = min(best, (costs_[node] & ~0xff) | node);
    return best & 0xff;
  }

 private:
  static constexpr int kChoice = T::kParents - 1;

  template <int State>
  static __device__ __forceinline__ int cost_of(float x) {
    const float difference = __fsub_rn(x, kStateLevel<Bits, State>);
    return __float_as_int(__fmul_rn(difference, difference));
  }

  template <std::size_t I>
  __device__ __forceinline__ void take_state(float x, int (&next)[T::kNodes]) const {
    constexpr int kState = OrderedState<Bits, I>::kState;
    constexpr int kNode = kState >> Bits;
    const int before = costs_[kState % T::kNodes];
    if constexpr (OrderedState<Bits, I>::kFirst) {
      next[kNode] = before + cost_of<kState>(x);
    } else {
      next[kNode] = __viaddmin_s32(before, cost_of<kState>(x), next[kNode]);
    }
  }
  template <std::size_t... I>
  __device__ __forceinline__ void take_states(float x, int (&next)[T::kNodes],
                                              std::index_sequence<I...>) const {
    (take_state<I>(x, next), ...);
  }

  template <int Node, int Parent, std::size_t... I>
  static __device__ __forceinline__ int least_between(float x, std::index_sequence<I...>) {
    int least = 0x7fffffff;
    ((least = min(least, cost_of<Node << Bits | static_cast<int>(I) * T::kNodes | Parent>(x))), ...);
    return least;
  }
  template <std::size_t I>
  __device__ __forceinline__ void take_branch(float x, int (&next)[T::kNodes]) const {
    constexpr int kNode = I / T::kParents;
    constexpr int kParent = I % T::kParents;
    const int cost = least_between<kNode, kParent>(x, std::make_index_sequence<T::kBetween>());
    if constexpr (kParent == 0) {
      next[kNode] = costs_[kParent] + cost;
    } else {
      next[kNode] = __viaddmin_s32(costs_[kParent], cost, next[kNode]);
    }
  }
  template <std::size_t... I>
  __device__ __forceinline__ void take_branches(float x, int (&next)[T::kNodes],
                                                std::index_sequence<I...>) const {
    (take_branch<I>(x, next), ...);
  }

  int costs_[T::kNodes];
  std::uint32_t choices_[T::kWords];
};

template <int Bits, int D>
struct alignas(16) TrellisShared {
  using T = Trellis<Bits>;
  static constexpr int kRow = D + 2;  // spreads tokens over banks
  static constexpr int kCodeBytes = kTokens * D * Bits / 8;
  static constexpr int kPageBytes = round_up_16(kCodeBytes + kTokens + 2 * D + 4);
  std::uint32_t choices[T::kRing * T::kWords][kTokens];
  __nv_bfloat16 values[kTokens * kRow];
  unsigned char page[kPageBytes];
  float means[D];
  std::uint32_t left_out[kTokens / 32];
  float largest;  // gain

  __device__ unsigned char* parameters() { return page + kCodeBytes; }
};

// One token's search and its codes.
template <int Bits, int D>
class TokenPath {
 public:
  using T = Trellis<Bits>;
  using Shared = TrellisShared<Bits, D>;

  __device__ TokenPath(Shared& shared, const CodeLayout& layout, PageSide side, int token)
      : shared_(shared), layout_(layout), side_(side), token_(token) {
    float squares = 0;
    for (int i = 0; i < D; ++i) squares += rest(i) * rest(i);
    to_levels_ = squares > 0 ? sqrtf(D / squares) / T::kCode.scale : 0;
  }

  // The least squares gain.
  __device__ float encode() {
    PathCosts<Bits> costs;
#pragma unroll 1
    for (int i = D - kRunIn; i < D; ++i) costs.step(in_units(i));
    int seam = 0;
#pragma unroll 1
    for (int first = 0; first < D; first += kEmittedValues) {
#pragma unroll 1
      for (int i = first; i < first + kEmittedValues; ++i) {
        costs.step(in_units(i));
#pragma unroll
        for (int word = 0; word < T::kWords; ++word)
          shared_.choices[i % T::kRing * T::kWords + word][token_] = costs.choices()[word];
      }
      const int end = first + kEmittedValues;
      if (end < T::kRing || end == D) continue;
      int node = costs.cheapest();
      for (int i = end - 1; i >= end - T::kRing + kEmittedValues; --i)
        node = state_before(i, node) % T::kNodes;
      node = emit(end - T::kRing, node);
      if (end == T::kRing) seam = node;
    }
    // The stream is a circle: it ends where it has begun.
    int node = seam;
    for (int first = D - kEmittedValues; first >= D - T::kRing; first -= kEmittedValues)
      node = emit(first, node);
    return length_ > 0 ? fminf(fmaxf(along_ / length_, 0), 0x1p126F) : 0;
  }

 private:
  __device__ float rest(int i) const {
    return __bfloat162float(shared_.values[token_ * Shared::kRow + i]) - shared_.means[i];
  }
  __device__ float in_units(int i) const {
    const float x = fminf(fmaxf(rest(i) * to_levels_, -T::kMost), T::kMost);
    return rintf(x * T::kFine) * T::kUnit;
  }

  // The state in which the path to `node` was after value i.
  __device__ int state_before(int i, int node) const {
    const std::uint32_t word = shared_.choices[i % T::kRing * T::kWords + node / T::kWordNodes][token_];
    int state = node << Bits | PathCosts<Bits>::choice(word, node);
    if constexpr (T::kBetween > 1) {
      const float x = rest(i) * to_levels_;
      float least = INFINITY;
      const int first = state;
      for (int j = 0; j < T::kBetween; ++j) {
        const int other = first | j * T::kNodes;
        const float difference = fabsf(x - level_of(other));
        if (difference < least) {
          least = difference;
          state = other;
        }
      }
    }
    return state;
  }

  // state_level, of a state that is known at run time only.
  static __device__ float level_of(int state) {
    const int mixed = state ^ state << T::kCode.mix;
    const int folded = (state << T::kCode.fold & T::kCode.fold_mask) | (mixed & ~T::kCode.fold_mask);
    return static_cast<float>((static_cast<signed char>(mixed) + static_cast<signed char>(folded)) / 2);
  }

  // Writes the codes of values [first, first + kEmittedValues), after which the path is at `node`. Returns
  // the node that it comes from.
  __device__ int emit(int first, int node) {
    std::uint64_t codes = 0;
#pragma unroll
    for (int i = kEmittedValues - 1; i >= 0; --i) {
      const int state = state_before(first + i, node);
      codes |= static_cast<std::uint64_t>(state >> (kTrellisBits - Bits)) << (i * Bits);
      const float shape = level_of(state) * T::kCode.scale;
      along_ += rest(first + i) * shape;
      length_ += shape * shape;
      node = state % T::kNodes;
    }
#pragma unroll
    for (int i = 0; i < Bits; ++i)
      shared_.page[code_bit(layout_, side_, D, token_, first, 8 * i) / 8] =
          static_cast<unsigned char>(codes >> (8 * i));
    return node;
  }

  Shared& shared_;
  const CodeLayout& layout_;
  PageSide side_;
  int token_;
  float to_levels_;
  float along_ = 0, length_ = 0;
};

template <int Bits, int D>
__device__ void store_means(TrellisShared<Bits, D>& shared) {
  for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kTrellisThreads) {
    double sum = 0;
    int n = 0;
    for (int token = 0; token < kTokens; ++token) {
      if ((shared.left_out[token / 32] >> (token % 32) & 1) != 0) continue;
      sum += static_cast<double>(
          __bfloat162float(shared.values[token * TrellisShared<Bits, D>::kRow + channel]));
      ++n;
    }
    const __half mean = n > 0 ? half_saturated(static_cast<float>(sum / n)) : __half(0);
    reinterpret_cast<__half*>(shared.parameters() + kTokens)[channel] = mean;
    shared.means[channel] = __half2float(mean);
  }
}

// The thread's token's gain, as a power of 2^(-1/32) of the page's largest.
template <int Bits, int D>
__device__ void store_gain(TrellisShared<Bits, D>& shared, int token, float gain) {
  if ((shared.left_out[token / 32] >> (token % 32) & 1) == 0)
    atomicMax(reinterpret_cast<int*>(&shared.largest), __float_as_int(gain));  // not negative
  __syncthreads();
  const float loudest = shared.largest;
  const bool silent = !(gain > 0) || !(loudest > 0);
  shared.parameters()[token] =
      silent ? 255
             : static_cast<unsigned char>(fminf(fmaxf(rintf(32 * (log2f(loudest) - log2f(gain))), 0), 255));
  if (token == 0) *reinterpret_cast<float*>(shared.parameters() + kTokens + 2 * D) = loudest;
}

template <int Bits, int D>
__global__ void __launch_bounds__(kTrellisThreads, Bits == 1 ? 1 : 2)
    seal_trellis_kernel(const __grid_constant__ SealArgs args, int first_side) {
  extern __shared__ __align__(16) unsigned char bytes[];
  using Shared = TrellisShared<Bits, D>;
  auto& shared = *reinterpret_cast<Shared*>(bytes);
  const int head = args.heads.at[blockIdx.y];
  const int side_index = first_side + static_cast<int>(blockIdx.z);
  const auto side = static_cast<PageSide>(side_index);
  const auto thread = static_cast<int>(threadIdx.x);
  DuePage due;
  if (!find_due_page(args, blockIdx.x, head, side_index, &due)) return;
  const auto* tail = reinterpret_cast<const __nv_bfloat16*>(due.tail);
  for (int i = thread; i < kTokens * D; i += kTrellisThreads)
    shared.values[i / D * Shared::kRow + i % D] = tail[plain_index(side, D, i / D, i % D)];
  if (thread < kTokens / 32) shared.left_out[thread] = left_out_tokens(args, due, head, thread);
  if (thread == 0) shared.largest = 0;
  if (thread < 4) reinterpret_cast<std::uint32_t*>(shared.page)[Shared::kPageBytes / 4 - 4 + thread] = 0;
  __syncthreads();
  store_means(shared);
  __syncthreads();
  TokenPath<Bits, D> path(shared, args.sides[side_index].layout, side, thread);
  store_gain(shared, thread, path.encode());
  __syncthreads();
  for (int i = thread; i < Shared::kPageBytes / 16; i += kTrellisThreads)
    reinterpret_cast<uint4*>(due.sealed)[i] = reinterpret_cast<const uint4*>(shared.page)[i];
}

}  // namespace kvant::cuda
