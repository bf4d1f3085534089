// Trellis-coded pages (tcq<B>, src/format/trellis.h): a thread finds the best path of a token by the Viterbi
// algorithm, with the costs of all nodes in registers. (A node is what a state shares with its successors:
// its upper 8 - B bits; src/format/trellis_viterbi.h.) A CTA encodes a page.
//
// Costs are whole numbers, whose lowest bits say which of its parents a node has its cost from: so a minimum
// of sums finds both. The square of a number that is a multiple of 2^-70 is a multiple of 2^-140, a subnormal
// number, whose bits are those of a whole number.
//
// Parents are kept for two windows of values only. At the end of a window the path
// that is the best then decides by which node it has begun; all others that do not come from there are
// forbidden, and the codes of the window before are written. Bits above those of the parent say from which
// node of the window's beginning a path comes.
#pragma once

#include <array>
#include <utility>

#include "attention/cuda/seal_page.cuh"
#include "format/trellis_code.h"

namespace kvant::cuda {

inline constexpr int kTrellisThreads = kTokens;
inline constexpr int kOctetValues = 8;  // whose codes are whole bytes

template <int Bits>
struct Trellis {
  static constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  static constexpr int kNodes = kTrellisStates >> Bits;
  static constexpr int kParentBits = Bits < 4 ? Bits : kTrellisBits - Bits;
  static constexpr int kParents = 1 << kParentBits;                      // of a node
  static constexpr int kBetween = kTrellisStates / (kNodes * kParents);  // states from a node to another
  static constexpr int kWords = (kNodes * kParentBits + 31) / 32;        // of the choices of a step
  static constexpr int kRunIn = Bits == 1 ? 32 : 16;  // values before the seam that choose its node

  // Lowest bits of costs: the parent's, and above them the node at the window's beginning.
  static constexpr int kPassengerBits = kParentBits + kTrellisBits - Bits;
  // Values and levels are multiples of this. Squares are then multiples of 2^9 or, with fewer passengers and
  // finer multiples, 2^7 or 2^5 bits. Where subnormal numbers end (at differences of 90 levels, for one bit
  // at 362), costs grow more slowly.
  static constexpr float kUnit = Bits == 6 ? 0x1p-72F : Bits == 5 ? 0x1p-71F : 0x1p-70F;
  static constexpr float kFine = Bits == 6 ? 8 : Bits == 5 ? 4 : Bits == 1 ? 0.5F : 2;  // of a level
  static constexpr float kMost = Bits == 1 ? 304 : 190;  // levels: values beyond are taken for that
  static constexpr int kForbidden = 0x40000000;
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
    static_cast<float>(static_cast<int>(state_level(Trellis<Bits>::kCode, State) * Trellis<Bits>::kFine)) *
    Trellis<Bits>::kUnit;

// The parents that the nodes have chosen in a step, by their lowest bits.
template <int Bits>
struct Choices {
  using T = Trellis<Bits>;
  // Three bits for 32 nodes: ten nodes a word, and the lowest two bits of each word for the last two nodes.
  static constexpr bool kSpread = 32 % T::kParentBits != 0 && T::kWords > 1;
  static constexpr int kWordNodes = kSpread ? 32 / T::kParentBits : T::kNodes / T::kWords;
  std::uint32_t words[T::kWords];

  __device__ explicit Choices(const int (&costs)[T::kNodes]) {
#pragma unroll
    for (int word = 0; word < T::kWords; ++word) {
      words[word] = 0;
      if constexpr (kSpread) {
        words[word] = __funnelshift_r(words[word], costs[T::kNodes - 2] >> word, 1);
        words[word] = __funnelshift_r(words[word], costs[T::kNodes - 1] >> word, 1);
      }
#pragma unroll
      for (int i = 0; i < kWordNodes; ++i)
        words[word] = __funnelshift_r(words[word], costs[word * kWordNodes + i], T::kParentBits);
    }
  }

  // Of one node; word(i): the ith of the words.
  template <class Word>
  static __device__ int of(int node, const Word& word) {
    if (kSpread && node >= T::kWords * kWordNodes) {
      int choice = 0;
      for (int i = 0; i < T::kParentBits; ++i) choice |= (word(i) >> (node % 2) & 1) << i;
      return choice;
    }
    const int shift = 32 - T::kParentBits * (kWordNodes - node % kWordNodes);
    return static_cast<int>(word(node / kWordNodes) >> shift) & (T::kParents - 1);
  }
};

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
  __device__ Choices<Bits> step(float x) {
    int next[T::kNodes];
    if constexpr (T::kBetween == 1) {
      take_states(x, next, std::make_index_sequence<kTrellisStates>());
    } else {
      take_branches(x, next, std::make_index_sequence<T::kNodes * T::kParents>());
    }
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] = (next[node] & ~kChoice) | (node & kChoice);
    return Choices<Bits>(next);
  }

  __device__ int cheapest() const {
    int best = 0x7fffffff;
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) best = min(best, (costs_[node] & ~0xff) | node);
    return best & 0xff;
  }

  // A window begins.
  __device__ void mark() {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node)
      costs_[node] = (costs_[node] & ~kPassengers) | node << T::kParentBits | (node & kChoice);
  }
  // Forbids paths that do not come from this node of the window's beginning.
  __device__ void forbid_others(int first_node) {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node)
      if ((costs_[node] & kPassengers) >> T::kParentBits != first_node) costs_[node] = T::kForbidden;
  }

 private:
  static constexpr int kChoice = T::kParents - 1;
  static constexpr int kPassengers = (1 << T::kPassengerBits) - 1;

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
};

// Values of a window, and for how many values parents are kept.
template <int Bits, int D>
inline constexpr int kWindow = Bits < 3 || (Bits == 3 && D == 64) ? 48 : 32;
template <int Bits, int D>
inline constexpr int kKept = 2 * kWindow<Bits, D> < D ? 2 * kWindow<Bits, D> : D;

template <int Bits, int D>
struct alignas(16) TrellisShared {
  using T = Trellis<Bits>;
  static constexpr int kCodeBytes = kTokens * D * Bits / 8;
  static constexpr int kPageBytes = round_up_16(kCodeBytes + kTokens + 2 * D + 4);
  std::uint32_t choices[kKept<Bits, D> * T::kWords][kTokens];
  unsigned char page[kPageBytes];
  float means[D];
  std::uint32_t left_out[kTokens / 32];
  float largest;  // gain

  __device__ unsigned char* parameters() { return page + kCodeBytes; }
};

// Values of a tail page, which stays in the first-level cache.
template <int D>
struct TailPage {
  const __nv_bfloat16* numbers;
  PageSide side;
  __device__ float value(int token, int channel) const {
    return __bfloat162float(numbers[plain_index(side, D, token, channel)]);
  }
};

// One token's search and its codes.
template <int Bits, int D>
class TokenPath {
 public:
  using T = Trellis<Bits>;
  using Shared = TrellisShared<Bits, D>;
  static constexpr int kWindow = cuda::kWindow<Bits, D>;

  __device__ TokenPath(Shared& shared, const CodeLayout& layout, const TailPage<D>& tail, int token)
      : shared_(shared), layout_(layout), tail_(tail), token_(token) {
    float squares = 0;
    for (int i = 0; i < D; ++i) squares += rest(i) * rest(i);
    to_levels_ = squares > 0 ? sqrtf(D / squares) / T::kCode.scale : 0;
  }

  // The least squares gain.
  __device__ float encode() {
    PathCosts<Bits> costs;
#pragma unroll 1
    for (int i = D - T::kRunIn; i < D; ++i) costs.step(in_units(i));
    int seam = 0;
#pragma unroll 1
    for (int first = 0;; first += kWindow) {
      const int end = min(first + kWindow, D);
      costs.mark();
#pragma unroll 1
      for (int i = first; i < end; ++i) {
        const Choices<Bits> choices = costs.step(in_units(i));
#pragma unroll
        for (int word = 0; word < T::kWords; ++word)
          shared_.choices[slot(i) + word][token_] = choices.words[word];
      }
      if (end == D) {
        // The stream is a circle: it ends where it has begun.
        emit(max(first - kWindow, 0), D, seam);
        break;
      }
      int node = costs.cheapest();
      for (int i = end - 1; i >= first; --i) node = state_before(i, node) % T::kNodes;
      costs.forbid_others(node);
      if (first == 0) {
        seam = node;
      } else {
        emit(first - kWindow, first, node);
      }
    }
    return length_ > 0 ? fminf(fmaxf(along_ / length_, 0), 0x1p126F) : 0;
  }

 private:
  __device__ float rest(int i) const {
    return tail_.value(token_, i) - shared_.means[i];
  }
  __device__ float in_units(int i) const {
    const float x = fminf(fmaxf(rest(i) * to_levels_, -T::kMost), T::kMost);
    return rintf(x * T::kFine) * T::kUnit;
  }

  // The state in which the path to `node` was after value i.
  __device__ int state_before(int i, int node) const {
    int state = node << Bits |
                Choices<Bits>::of(node, [&](int word) { return shared_.choices[slot(i) + word][token_]; });
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

  // Writes the codes of values [first, end), after which the path is at `node`.
  __device__ void emit(int first, int end, int node) {
#pragma unroll 1
    for (int octet = end - kOctetValues; octet >= first; octet -= kOctetValues) {
      std::uint64_t codes = 0;
#pragma unroll
      for (int i = kOctetValues - 1; i >= 0; --i) {
        const int state = state_before(octet + i, node);
        codes |= static_cast<std::uint64_t>(state >> (kTrellisBits - Bits)) << (i * Bits);
        const float shape = level_of(state) * T::kCode.scale;
        along_ += rest(octet + i) * shape;
        length_ += shape * shape;
        node = state % T::kNodes;
      }
#pragma unroll
      for (int i = 0; i < Bits; ++i)
        shared_.page[code_bit(layout_, tail_.side, D, token_, octet, 8 * i) / 8] =
            static_cast<unsigned char>(codes >> (8 * i));
    }
  }

  // Where the choices of value i are kept.
  static __device__ int slot(int i) {
    return i % kKept<Bits, D> * T::kWords;
  }

  Shared& shared_;
  const CodeLayout& layout_;
  const TailPage<D>& tail_;
  int token_;
  float to_levels_;
  float along_ = 0, length_ = 0;
};

template <int Bits, int D>
__device__ void store_means(TrellisShared<Bits, D>& shared, const TailPage<D>& tail) {
  for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kTrellisThreads) {
    double sum = 0;
    int n = 0;
    for (int token = 0; token < kTokens; ++token) {
      if ((shared.left_out[token / 32] >> (token % 32) & 1) != 0) continue;
      sum += static_cast<double>(tail.value(token, channel));
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
__global__ void __launch_bounds__(kTrellisThreads, Bits < 3 ? 1 : 2)
    seal_trellis_kernel(const __grid_constant__ SealArgs args, int first_side) {
  extern __shared__ __align__(16) unsigned char bytes[];
  using Shared = TrellisShared<Bits, D>;
  auto& shared = *reinterpret_cast<Shared*>(bytes);
  const int head = args.heads.at[blockIdx.y];
  const int side = first_side + static_cast<int>(blockIdx.z);
  const auto thread = static_cast<int>(threadIdx.x);
  DuePage due;
  if (!find_due_page(args, blockIdx.x, head, side, &due)) return;
  const TailPage<D> tail{reinterpret_cast<const __nv_bfloat16*>(due.tail), static_cast<PageSide>(side)};
  if (thread < kTokens / 32) shared.left_out[thread] = left_out_tokens(args, due, head, thread);
  if (thread == 0) shared.largest = 0;
  if (thread < 4) reinterpret_cast<std::uint32_t*>(shared.page)[Shared::kPageBytes / 4 - 4 + thread] = 0;
  __syncthreads();
  store_means(shared, tail);
  __syncthreads();
  TokenPath<Bits, D> path(shared, args.sides[side].layout, tail, thread);
  store_gain(shared, thread, path.encode());
  __syncthreads();
  for (int i = thread; i < Shared::kPageBytes / 16; i += kTrellisThreads)
    reinterpret_cast<uint4*>(due.sealed)[i] = reinterpret_cast<const uint4*>(shared.page)[i];
}

}  // namespace kvant::cuda
