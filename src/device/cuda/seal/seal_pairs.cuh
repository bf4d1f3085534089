// Seals trellis-coded pages with 4 bits per value on Hopper GPUs. A thread searches the paths of two tokens
// at once (paired_costs.cuh), which are a token of the page's first half and the token 64 places later.
// Otherwise the search works as in seal_trellis.cuh.
//
// The costs of pairs cannot represent very large values, as in keys that are not rotated. The slower search
// of seal_trellis.cuh encodes pages with many large values, and single tokens whose path has a large error.
#pragma once

#include "device/cuda/seal/kept_choices.cuh"
#include "device/cuda/seal/paired_costs.cuh"
#include "device/cuda/seal/seal_trellis.cuh"

namespace kvant::cuda {

inline constexpr int kPairThreads = kPageTokens / 2;

// PairsShared is the shared memory of a CTA. If IsSplit is true, the choices are SplitChoices
// (kept_choices.cuh).
template <int D, bool IsSplit>
struct alignas(16) PairsShared {
  static constexpr int kWindow = 32;  // values in a window
  using Choices = std::conditional_t<IsSplit, SplitChoices<PairedTrellis::kWords, kWindow, kPairThreads>,
                                     SharedChoices<PairedTrellis::kWords, 2 * kWindow, kPairThreads>>;
  using ChoicesOfOne = SharedChoices<Trellis<kPairedBits>::kWords, kKept<kPairedBits, D>, kPairThreads>;
  union {
    typename Choices::Shared choices;
    typename ChoicesOfOne::Shared choices_of_one;
  };
  float shapes[kTrellisStates];
  int excess;  // sum of add_excess() over the page
  TrellisPage<kPairedBits, D> page;
};

// Refers to parts of PairsShared in the form that TokenPath expects.
template <int D>
struct OneByOne {
  using Choices = typename PairsShared<D, false>::ChoicesOfOne;
  typename Choices::Shared& choices;
  TrellisPage<kPairedBits, D>& page;
  NoLevels levels;
};

// kMostExcess is the limit of PairsShared::excess per value of a page, in squared levels. A token has an
// excess if its largest value exceeds PairedTrellis::kMax. The page's excess is the sum of the squared
// differences. The excess of normal values is less than a third of the limit. The error of the codes
// themselves is 10 per value.
inline constexpr float kMostExcess = 0.5F;
// Costs of pairs may underestimate errors above this number of levels. Paths of normal values have no such
// errors.
inline constexpr float kMostDistance = 48;

template <int D, bool IsSplit>
class PairPath {
 public:
  using T = PairedTrellis;
  using Shared = PairsShared<D, IsSplit>;

  __device__ PairPath(Shared& shared, const TailPage<D>& tail, int thread)
      : shared_(shared),
        choices_(shared.choices, thread),
        tokens_{{shared.page, tail, thread}, {shared.page, tail, thread + kPairThreads}},
        counts_{shared.page.keeps(thread), shared.page.keeps(thread + kPairThreads)} {}

  // Adds the excess of both tokens to PairsShared::excess.
  __device__ void add_excess() const {
    int excess = 0;
    for (int i = 0; i < 2; ++i) {
      const float beyond = tokens_[i].largest() - T::kMax;
      if (beyond > 0 && counts_[i]) excess += static_cast<int>(fminf(beyond * beyond, 0x1p20F));
    }
    if (excess > 0) atomicAdd(&shared_.excess, excess);
  }

  __device__ void encode() {
    PairedCosts costs(blockDim.y);
    run(costs, D - kRunIn, D, [](int, const PairedChoices&) {});
    unsigned seam[2] = {};
#pragma unroll 1
    for (int first = 0;; first += kWindow) {
      const int end = min(first + kWindow, D);
      run(costs, first, end, [&](int i, const PairedChoices& choices) {
#pragma unroll
        for (int word = 0; word < T::kWords; ++word) choices_.newer(i, word) = choices.words[word];
      });
      if (end == D) {
        // The stream is a circle, so the path ends at the node from which it started.
        ask_for_first(D - kOctetValues);
        emit(max(first - kWindow, 0), D, seam);
        break;
      }
      if (first > 0) ask_for_first(first - kOctetValues);
      const std::uint32_t cheapest = costs.cheapest();
      unsigned nodes[2] = {cheapest & 0xffff, cheapest >> 16};
#pragma unroll 1
      for (int i = end - 1; i >= first; --i) {
        const auto word = [&](int nth) { return choices_.newer(i, nth); };
        nodes[0] = state_before(word, nodes[0], 0) % T::kNodes;
        nodes[1] = state_before(word, nodes[1], 1) % T::kNodes;
      }
      forbid_others(costs, first, end, nodes);
      if (first == 0) {
        seam[0] = nodes[0];
        seam[1] = nodes[1];
      } else {
        emit(first - kWindow, first, nodes);
      }
      choices_.end_window();
    }
  }
  // Returns a bit for each token whose largest error is so large that the costs of pairs may have misled the
  // search for its path.
  __device__ int doubtful() const {
    return (largest_error_[0] > kMostDistance ? 1 : 0) | (largest_error_[1] > kMostDistance ? 2 : 0);
  }
  __device__ float gain(int of) const {
    return tokens_[of].gain();
  }

 private:
  static constexpr int kWindow = Shared::kWindow;
  static constexpr int kRunIn = 16;  // number of values before the seam that choose its node

  // Processes the values [first, end) of a window, and calls keep(i, choices) after each. Until then, the
  // place of a step's choices holds the values of both tokens.
  template <class Keep>
  __device__ __forceinline__ void run(PairedCosts& costs, int first, int end, const Keep& keep) {
    constexpr int kOctets = kWindow / kOctetValues;
    typename TrellisToken<kPairedBits, D>::Octet stored[kOctets][2];
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      const int from = first + octet * kOctetValues;
      if (from >= end) break;
      tokens_[0].ask_for(from, stored[octet][0]);
      tokens_[1].ask_for(from, stored[octet][1]);
    }
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      const int from = first + octet * kOctetValues;
      if (from >= end) break;
      float x[2][kOctetValues];
      tokens_[0].in_levels(from, stored[octet][0], x[0]);
      tokens_[1].in_levels(from, stored[octet][1], x[1]);
#pragma unroll
      for (int i = 0; i < kOctetValues; ++i) choices_.newer(from + i, 0) = costs.in_units(x[0][i], x[1][i]);
    }
    std::uint32_t ahead = choices_.newer(first, 0);
#pragma unroll 1
    for (int i = first; i < end; ++i) {
      const std::uint32_t x = ahead;
      ahead = choices_.newer(min(i + 1, end - 1), 0);
      keep(i, costs.step(x));
      if (i % T::kSteps == 0) costs.lower();
    }
  }

  // Forbids all paths that did not pass through `nodes` at the start of the window [first, end). `nodes` has
  // one node for each token.
  __device__ __forceinline__ void forbid_others(PairedCosts& costs, int first, int end,
                                                const unsigned (&nodes)[2]) const {
    PathOrigins origins[2] = {PathOrigins(nodes[0]), PathOrigins(nodes[1])};
#pragma unroll 1
    for (int i = first; i < end; ++i) {
      origins[0].advance([&](int word) { return choices_.newer(i, word); });
      origins[1].advance([&](int word) { return choices_.newer(i, word) >> 16; });
    }
    costs.forbid_others(origins[0], origins[1]);
  }

  // Returns the state before `node` on the path of token `of`. word(i) is word i of the choices.
  template <class Word>
  static __device__ __forceinline__ unsigned state_before(const Word& word, unsigned node, int of) {
    return node << kPairedBits | PairedChoices::of(node, of, word);
  }

  __device__ __forceinline__ void ask_for_first(int octet) {
    tokens_[0].ask_for_first(octet);
    tokens_[1].ask_for_first(octet);
  }

  // Writes the codes of the values [first, end). After these values, the tokens' paths are at `nodes`.
  __device__ void emit(int first, int end, const unsigned (&nodes)[2]) {
    unsigned node0 = nodes[0], node1 = nodes[1];
#pragma unroll 1
    for (int octet = end - kOctetValues; octet >= first; octet -= kOctetValues) {
      const auto choices = choices_.octet(octet, end == D && octet >= D - kWindow);
      const int next = max(octet - kOctetValues, first);
      tokens_[0].begin_octet(octet, next);
      tokens_[1].begin_octet(octet, next);
#pragma unroll
      for (int i = kOctetValues - 1; i >= 0; --i) {
        const auto word = [&](int nth) { return choices(i, nth); };
        const unsigned states[2] = {state_before(word, node0, 0), state_before(word, node1, 1)};
        take_state(0, i, states[0]);
        take_state(1, i, states[1]);
        node0 = states[0] % T::kNodes;
        node1 = states[1] % T::kNodes;
      }
      tokens_[0].end_octet(octet);
      tokens_[1].end_octet(octet);
    }
  }

  // Takes the state of value i of token `of` in the current octet.
  __device__ __forceinline__ void take_state(int of, int i, unsigned state) {
    const float shape = shared_.shapes[state];
    tokens_[of].take_state(i, state, shape);
    const float taken = fminf(fmaxf(tokens_[of].octet_in_levels(i), -T::kMax), T::kMax);
    const float error = fabsf(__fmaf_rn(shape, -1 / T::kCode.scale, taken));
    if (counts_[of]) largest_error_[of] = fmaxf(largest_error_[of], error);
  }

  Shared& shared_;
  typename Shared::Choices choices_;
  TrellisToken<kPairedBits, D> tokens_[2];
  bool counts_[2];  // false for a token that is left out
  float largest_error_[2] = {};
};

// kPairCtas is the number of CTAs per SM.
template <int D, bool IsSplit>
inline constexpr int kPairCtas = (D >= 256 ? 2 : 3) + (IsSplit ? 1 : 0);

template <int D, bool IsSplit>
__global__ void __launch_bounds__(kPairThreads, kPairCtas<D, IsSplit>)
    seal_pairs_kernel(const __grid_constant__ SealArgs args) {
  if constexpr (Architecture::kPackedMaxima) {
    extern __shared__ __align__(16) unsigned char bytes[];
    auto& shared = *reinterpret_cast<PairsShared<D, IsSplit>*>(bytes);
    const auto thread = static_cast<int>(threadIdx.x);
    const auto prepare = [&] {
      if (thread == 0) shared.excess = 0;
      for (int state = thread; state < kTrellisStates; state += kPairThreads)
        shared.shapes[state] = TrellisToken<kPairedBits, D>::shape_of(state);
    };
    seal_due_page<kPairThreads>(args, shared.page, prepare, [&](const TailPage<D>& tail, float(&gains)[2]) {
      PairPath<D, IsSplit> path(shared, tail, thread);
      path.add_excess();
      __syncthreads();
      int again = 3;  // one bit for each token that must be searched separately
      if (static_cast<float>(shared.excess) <= kMostExcess * kPageTokens * D) {
        path.encode();
        gains[0] = path.gain(0);
        gains[1] = path.gain(1);
        again = path.doubtful();
      }
      if (__syncthreads_or(again) == 0) return;
      // The search no longer needs the choices of pairs, so their memory is free.
      OneByOne<D> each{shared.choices_of_one, shared.page, {}};
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        if ((again >> i & 1) == 0) continue;
        TokenPath<kPairedBits, D, OneByOne<D>> one(each, tail, thread + i * kPairThreads, thread);
        const float gain = one.encode();
        if (i == 0) gains[0] = gain;
        if (i == 1) gains[1] = gain;
      }
    });
  }
}

}  // namespace kvant::cuda
