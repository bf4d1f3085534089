// Seals trellis-coded pages (tcq<B>, src/format/trellis.h). A CTA encodes a page, and each thread finds the
// best path of a token by the Viterbi search. The thread has the costs of all nodes in registers. A node is
// the part of a state that its successors share, which is the state's upper 8 - B bits
// (src/format/trellis_viterbi.h).
//
// Costs are integers whose lowest bits hold the number of a node's parent, so one minimum finds both the cost
// and the parent. The kernel squares multiples of Trellis::kUnit, which is 2^-70 or less, in F32. The squares
// are subnormal numbers, whose bits are the bits of an integer.
//
// Choices of parents are kept for two windows of values only. At the end of a window, the best path
// determines the node at the window's start, through which the path went. All paths through other nodes are
// then forbidden, and the codes of the previous window are written. The bits above the parent's number hold
// the node at the window's start from which a path comes.
#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "device/cuda/seal/kept_choices.cuh"
#include "device/cuda/seal/seal_registry.h"
#include "device/cuda/seal/trellis_token.cuh"

namespace kvant::cuda {

inline constexpr int kTrellisThreads = kPageTokens;

template <int Bits>
struct Trellis {
  static constexpr TrellisCode kCode = kTrellisCodes[Bits - 1];
  static constexpr int kNodes = kTrellisStates >> Bits;
  static constexpr int kParentBits = Bits < 4 ? Bits : kTrellisBits - Bits;
  static constexpr int kParents = 1 << kParentBits;                      // parents of each node
  static constexpr int kBetween = kTrellisStates / (kNodes * kParents);  // states from one node to another
  static constexpr int kWords = (kNodes * kParentBits + 31) / 32;        // words for the choices of a step
  static constexpr int kRunIn = Bits == 1 ? 32 : 16;  // number of values before the seam that choose its node

  // The lowest kPassengerBits bits of a cost hold the parent and, above it, the node at the window's start.
  static constexpr int kPassengerBits = kParentBits + kTrellisBits - Bits;
  // Values and levels are multiples of kUnit, and a level is kFine of them. A square is then a multiple of
  // 2^9 times the smallest subnormal number, or of 2^7 with 5 bits and 2^5 with 6 bits. This factor leaves
  // room for kPassengerBits. Beyond subnormal numbers, at differences of 90 levels (362 with one bit), costs
  // grow more slowly.
  static constexpr float kUnit = Bits == 6 ? 0x1p-72F : Bits == 5 ? 0x1p-71F : 0x1p-70F;
  // kFine is the number of multiples of kUnit in a level.
  static constexpr float kFine = Bits == 6 ? 8 : Bits == 5 ? 4 : Bits == 1 ? 0.5F : 2;
  // Values saturate at a magnitude of kMax levels.
  static constexpr float kMax = Bits == 1 ? 304 : 190;
  static constexpr int kForbidden = 0x40000000;
};

// Holds an order of the states in which equal levels are adjacent, because equal levels share a square. The
// set of levels is symmetric about -1/2, and each level is adjacent to its mirror image. With one bit all
// levels are different. States with common parents are then adjacent, so registers hold the costs of the
// parents only briefly.
struct StateOrder {
  std::array<int, kTrellisStates> states;
  std::array<bool, kTrellisStates> first;  // whether no earlier state leads to the state's node
};
template <int Bits>
constexpr StateOrder order_states() {
  StateOrder order{};
  int n = 0;
  if constexpr (Bits == 1) {
    for (int parent = 0; parent < Trellis<Bits>::kNodes; parent += 2)
      for (const int state : {parent, parent + 1, parent + 128, parent + 129}) order.states[n++] = state;
  } else {
    for (int level = 0; level < 128; ++level)
      for (const int either : {level, -1 - level})
        for (int state = 0; state < kTrellisStates; ++state)
          if (state_level(Trellis<Bits>::kCode, state) == either) order.states[n++] = state;
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

// OrderedState describes state number I in the order of kStateOrder.
template <int Bits, int I>
struct OrderedState {
  static constexpr int kState = kStateOrder<Bits>.states[I];
  static constexpr bool kFirst = kStateOrder<Bits>.first[I];
};

// kStateLevel is the level of a state in multiples of kUnit.
template <int Bits, int State>
inline constexpr int kStateLevel = static_cast<int>(state_level(Trellis<Bits>::kCode, State) *
                                                    Trellis<Bits>::kFine);

// Holds the parents that the nodes have chosen in a step. A parent is identified by the lowest bits of its
// number.
template <int Bits>
struct Choices {
  using T = Trellis<Bits>;
  // The bits of nodes are consecutive and end at the highest bit of the last word. If a node has three bits,
  // they may lie in two words.
  static constexpr bool kSplits = 32 % T::kParentBits != 0 && T::kWords > 1;
  static constexpr int kWordNodes = T::kNodes / T::kWords;
  std::uint32_t words[T::kWords];

  __device__ explicit Choices(const int (&costs)[T::kNodes]) {
#pragma unroll
    for (int word = 0; word < T::kWords; ++word) {
      words[word] = 0;
#pragma unroll
      for (int node = 0; node < T::kNodes; ++node) {
        // `first` is the first of the node's bits, counted from the start of the word.
        const int first = node * T::kParentBits - 32 * word;
        const int before = first < 0 ? -first : 0;  // bits that are in the previous word
        const int here = min(first + T::kParentBits, 32) - max(first, 0);
        if (here > 0) words[word] = __funnelshift_r(words[word], costs[node] >> before, here);
      }
    }
  }

  // Returns the choice of one node. word(i) is word i of the choices.
  template <class Word>
  static __device__ unsigned of(unsigned node, const Word& word) {
    if constexpr (kSplits) {
      const unsigned bit = node * T::kParentBits;
      const unsigned both =
          __funnelshift_r(word(bit / 32), word(min(bit / 32 + 1, T::kWords - 1U)), bit % 32);
      return both & (T::kParents - 1);
    }
    const unsigned shift = 32 - T::kParentBits * (kWordNodes - node % kWordNodes);
    return word(node / kWordNodes) >> shift & (T::kParents - 1);
  }
};

// BranchLevels holds the levels of the states between two nodes if there are several such states.
struct NoLevels {};
template <int Bits>
using BranchLevels = std::conditional_t<(Trellis<Bits>::kBetween > 1), NearestLevels<Bits>, NoLevels>;

// Holds the cost of the cheapest path to each node.
template <int Bits>
class PathCosts {
 public:
  using T = Trellis<Bits>;

  // `one` must be 1, in a form that the compiler does not recognize as a constant (see not_choice_).
  __device__ explicit PathCosts(int one) : not_choice_(-one << T::kParentBits) {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] = node & kChoice;
  }

  // Extends all paths by a value x, in levels, and returns which parent each node has chosen.
  __device__ __forceinline__ Choices<Bits> step(float x, const BranchLevels<Bits>& levels) {
    const float in_units = rintf(x * T::kFine) * T::kUnit;
    int next[T::kNodes];
    if constexpr (T::kBetween == 1) {
      take_states(Squarable(in_units), next, std::make_index_sequence<kTrellisStates>());
    } else {
      take_branches(in_units, levels, levels.bin_of(x), next);
    }
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) costs_[node] = (next[node] & not_choice_) | (node & kChoice);
    return Choices<Bits>(next);
  }

  __device__ unsigned cheapest() const {
    int best = 0x7fffffff;
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node) best = min(best, (costs_[node] & ~0xff) | node);
    return best & 0xff;
  }

  // Starts a window. From now on, each path keeps the number of its node at the window's start.
  __device__ void mark() {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node)
      costs_[node] = (costs_[node] & ~kPassengers) | node << T::kParentBits | (node & kChoice);
  }
  // Forbids paths that do not come from node first_node at the window's start.
  __device__ void forbid_others(unsigned first_node) {
#pragma unroll
    for (int node = 0; node < T::kNodes; ++node)
      if (static_cast<unsigned>(costs_[node] & kPassengers) >> T::kParentBits != first_node)
        costs_[node] = T::kForbidden;
  }

 private:
  static constexpr int kChoice = T::kParents - 1;
  static constexpr int kPassengers = (1 << T::kPassengerBits) - 1;

  // Squarable holds x and its square, from which the distances to all levels follow. x is relative to -1/2,
  // around which levels form pairs of equal distance. x^2 + level^2 - 2 x level therefore takes three
  // operations for two levels.
  struct Squarable {
    float x, square;
    explicit __device__ __forceinline__ Squarable(float in_units) {
      x = Bits == 1 ? in_units : __fadd_rn(in_units, 0.5F * T::kFine * T::kUnit);
      square = __fmul_rn(x, x);
    }
  };
  template <int State>
  static __device__ __forceinline__ int cost_of(const Squarable& x) {
    if constexpr (Bits == 1) {
      const float difference = __fsub_rn(x.x, kStateLevel<Bits, State> * T::kUnit);
      return __float_as_int(__fmul_rn(difference, difference));
    } else {
      constexpr float kLevel = (kStateLevel<Bits, State> + 0.5F * T::kFine) * T::kUnit;
      const float squares = __fadd_rn(x.square, kLevel * kLevel);
      return __float_as_int(__fmaf_rn(x.x, -2 * kLevel, squares));
    }
  }

  template <std::size_t I>
  __device__ __forceinline__ void take_state(const Squarable& x, int (&next)[T::kNodes]) const {
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
  __device__ __forceinline__ void take_states(const Squarable& x, int (&next)[T::kNodes],
                                              std::index_sequence<I...>) const {
    (take_state<I>(x, next), ...);
  }

  __device__ __forceinline__ void take_branches(float x, const BranchLevels<Bits>& levels, int bin,
                                                int (&next)[T::kNodes]) const {
    constexpr int kOffset = NearestLevels<Bits>::kOffset;
    // The byte of a level becomes part of the mantissa of kBase, in units of levels.
    constexpr float kBase = T::kUnit * T::kFine * 0x1p15F;
    const float above = x + (kBase + kOffset * (T::kUnit * T::kFine));
#pragma unroll
    for (int i = 0; i < T::kNodes * T::kParents / 16; ++i) {
      const uint4 sixteen = levels.piece(bin, i);
      const std::uint32_t words[4] = {sixteen.x, sixteen.y, sixteen.z, sixteen.w};
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int node = (16 * i + j) / T::kParents;
        const int parent = (16 * i + j) % T::kParents;
        const std::uint32_t level = __byte_perm(words[j / 4], __float_as_uint(kBase), 0x7604 | (j % 4) << 4);
        const float difference = __fsub_rn(__uint_as_float(level), above);
        const int cost = __float_as_int(__fmul_rn(difference, difference));
        next[node] = parent == 0 ? costs_[parent] + cost : __viaddmin_s32(costs_[parent], cost, next[node]);
      }
    }
  }

  int not_choice_;  // ~kChoice; a constant would turn one operation into two
  int costs_[T::kNodes];
};

// kWindow is the number of values in a window. kKept is the number of values for which choices are kept.
template <int Bits, int D>
inline constexpr int kWindow = Bits < 3 || (Bits == 3 && D == 64) ? 48
                               : Bits < 5                         ? 32
                                                                  : 24;
template <int Bits, int D>
inline constexpr int kKept = 2 * kWindow<Bits, D> < D ? 2 * kWindow<Bits, D> : D;

// kChoiceWords is the number of words of a thread's choices. kHasFewChoices says whether the choices of all
// threads fit in a small shared memory. If they do not, GPUs with a small shared memory keep choices in local
// memory.
template <int Bits, int D>
inline constexpr int kChoiceWords = kKept<Bits, D>* Trellis<Bits>::kWords;
template <int Bits, int D>
inline constexpr bool kHasFewChoices = kChoiceWords<Bits, D>* kPageTokens * 4 <= 65536;

template <int Bits, int D, bool HasChoices>
struct alignas(16) TrellisShared {
  using Choices =
      std::conditional_t<HasChoices, SharedChoices<Trellis<Bits>::kWords, kKept<Bits, D>, kPageTokens>,
                         LocalChoices<Trellis<Bits>::kWords, kKept<Bits, D>>>;
  [[no_unique_address]] typename Choices::Shared choices;
  TrellisPage<Bits, D> page;
  BranchLevels<Bits> levels;
};

// TokenPath searches for the path of one token and writes its codes.
template <int Bits, int D, class Shared>
class TokenPath {
 public:
  using T = Trellis<Bits>;
  static constexpr int kWindow = cuda::kWindow<Bits, D>;

  // `column` is the calling thread's column of the choices.
  __device__ TokenPath(Shared& shared, const TailPage<D>& tail, int token, int column)
      : shared_(shared), choices_(shared.choices, column), token_(shared.page, tail, token) {}

  // Encodes the token and returns its gain.
  __device__ float encode() {
    PathCosts<Bits> costs(static_cast<int>(blockDim.y));
    run(costs, D - T::kRunIn, D, [](int, const Choices<Bits>&) {});
    unsigned seam = 0;
#pragma unroll 1
    for (int first = 0;; first += kWindow) {
      const int end = min(first + kWindow, D);
      costs.mark();
      run(costs, first, end, [&](int i, const Choices<Bits>& choices) {
#pragma unroll
        for (int word = 0; word < T::kWords; ++word) choices_.newer(i, word) = choices.words[word];
      });
      if (end == D) {
        // The stream is a circle, so the path ends at the node from which it started.
        token_.ask_for_first(D - kOctetValues);
        emit(max(first - kWindow, 0), D, seam);
        break;
      }
      if (first > 0) token_.ask_for_first(first - kOctetValues);
      unsigned node = costs.cheapest();
      for (int i = end - 1; i >= first; --i) {
        const unsigned choice = Choices<Bits>::of(node, [&](int word) { return choices_.newer(i, word); });
        node = (node << Bits | choice) % T::kNodes;
      }
      costs.forbid_others(node);
      if (first == 0) {
        seam = node;
      } else {
        emit(first - kWindow, first, node);
      }
      choices_.end_window();
    }
    return token_.gain();
  }

 private:
  static __device__ float limited(float in_levels) {
    return fminf(fmaxf(in_levels, -T::kMax), T::kMax);
  }

  // Processes the values [first, end) and calls keep(i, choices) after each. Until then, the place of a
  // step's choices holds the step's value.
  template <class Keep>
  __device__ __forceinline__ void run(PathCosts<Bits>& costs, int first, int end, const Keep& keep) {
    constexpr int kOctets = kWindow / kOctetValues;
    typename TrellisToken<Bits, D>::Octet stored[kOctets];
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet)
      if (first + octet * kOctetValues < end) token_.ask_for(first + octet * kOctetValues, stored[octet]);
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      const int from = first + octet * kOctetValues;
      if (from >= end) break;
      float x[kOctetValues];
      token_.in_levels(from, stored[octet], x);
#pragma unroll
      for (int i = 0; i < kOctetValues; ++i) choices_.newer(from + i, 0) = __float_as_uint(limited(x[i]));
    }
    const auto waiting = [&](int i) { return __uint_as_float(choices_.newer(i, 0)); };
    float ahead = waiting(first);
#pragma unroll 1
    for (int i = first; i < end; ++i) {
      const float x = ahead;
      ahead = waiting(min(i + 1, end - 1));
      keep(i, costs.step(x, shared_.levels));
    }
  }

  // Returns the state from which a path came to `node`. `choice` is the node's choice, and in_levels is the
  // value.
  __device__ unsigned state_before(unsigned choice, unsigned node, float in_levels) const {
    if constexpr (T::kBetween > 1) return shared_.levels.state_of(limited(in_levels), node, choice);
    return node << Bits | choice;
  }

  // Writes the codes of the values [first, end). After these values, the path is at `node`.
  __device__ void emit(int first, int end, unsigned node) {
#pragma unroll 1
    for (int octet = end - kOctetValues; octet >= first; octet -= kOctetValues) {
      const auto choices = choices_.octet(octet, end == D && octet >= first + kWindow);
      token_.begin_octet(octet, max(octet - kOctetValues, first));
#pragma unroll
      for (int i = kOctetValues - 1; i >= 0; --i) {
        const unsigned choice = Choices<Bits>::of(node, [&](int word) { return choices(i, word); });
        const unsigned state = state_before(choice, node, token_.octet_in_levels(i));
        token_.take_state(i, state, token_.shape_of(state));
        node = state % T::kNodes;
      }
      token_.end_octet(octet);
    }
  }

  Shared& shared_;
  typename Shared::Choices choices_;
  TrellisToken<Bits, D> token_;
};

// kTrellisCtas is the number of CTAs per SM.
template <int Bits>
inline constexpr int kTrellisCtas = Bits == 6   ? 4
                                    : Bits < 3  ? 1
                                    : Bits == 3 ? 2
                                                : 3;

// Says whether pages have a kernel that is compiled for kJoiningCtas. With 1 and 2 bits, and with 3 bits and
// heads of 64, such a kernel would spill registers. With 5 and 6 bits, the ordinary kernel is small enough.
template <int Bits, int D>
inline constexpr bool kHasJoiningKernel = Bits == 4 || (Bits == 3 && D > 64);

template <int Bits, int D, int Ctas = kTrellisCtas<Bits>>
__global__ void __launch_bounds__(kTrellisThreads, Ctas)
    seal_trellis_kernel(const __grid_constant__ SealArgs args) {
  extern __shared__ __align__(16) unsigned char bytes[];
  using Shared = TrellisShared<Bits, D, Architecture::kLargeSharedMemory || kHasFewChoices<Bits, D>>;
  auto& shared = *reinterpret_cast<Shared*>(bytes);
  const auto prepare = [&] {
    if constexpr (Trellis<Bits>::kBetween > 1) shared.levels.fill();
  };
  seal_due_page<kTrellisThreads>(args, shared.page, prepare, [&](const TailPage<D>& tail, float(&gains)[1]) {
    const auto thread = static_cast<int>(threadIdx.x);
    gains[0] = TokenPath<Bits, D, Shared>(shared, tail, thread, thread).encode();
  });
}

}  // namespace kvant::cuda
