#include "format/trellis.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/simd_clones.h"
#include "format/affine_row.h"

namespace kvant {
namespace {

using Lanes = std::array<float, kTrellisRows>;         // one number for each row
using Steps = std::array<std::uint8_t, kTrellisRows>;  // which predecessor each row's best path came from
using States = std::array<std::uint8_t, kTrellisRows>;

// Values of each row's end that the first pass sees before bit 0, and of its beginning after it: the choice
// of a state forgets what lies further away.
constexpr int kRunIn = 16;
constexpr float kForbidden = 1e30F;  // the cost of a state that a path may not begin in

// A step of the Viterbi algorithm for all rows. State s follows any old state o with o >> B == s & mask: the
// new symbol is s's top B bits. best[p]: the predecessor of the states p, among the old states p << B | j;
// costs[s]: of the best path that ends in s.
template <int B>
[[gnu::always_inline]] inline void viterbi_step(const float* x, const float* levels, Lanes* costs,
                                                Lanes* least, Steps* best) {
  constexpr int kParents = 1 << B;
  constexpr int kGroups = kTrellisStates >> B;
  for (int p = 0; p < kGroups; ++p) {
    std::array<std::int32_t, kTrellisRows> from{};
    Lanes low = costs[p << B];
    for (int j = 1; j < kParents; ++j) {
      const Lanes& cost = costs[p << B | j];
#pragma GCC unroll 1
      for (int row = 0; row < kTrellisRows; ++row) {
        const bool less = cost[row] < low[row];
        from[row] = less ? j : from[row];
        low[row] = less ? cost[row] : low[row];
      }
    }
    least[p] = low;
#pragma GCC unroll 1
    for (int row = 0; row < kTrellisRows; ++row) best[p][row] = static_cast<std::uint8_t>(from[row]);
  }
  for (int s = 0; s < kTrellisStates; ++s) {
    const Lanes& low = least[s & (kGroups - 1)];
#pragma GCC unroll 1
    for (int row = 0; row < kTrellisRows; ++row) {
      const float difference = x[row] - levels[s];
      costs[s][row] = low[row] + difference * difference;
    }
  }
}

KVANT_SIMD_CLONES void step_of_bits(int bits, const float* x, const float* levels, Lanes* costs, Lanes* least,
                                    Steps* best) {
  switch (bits) {
    case 1:
      return viterbi_step<1>(x, levels, costs, least, best);
    case 2:
      return viterbi_step<2>(x, levels, costs, least, best);
    case 3:
      return viterbi_step<3>(x, levels, costs, least, best);
    case 4:
      return viterbi_step<4>(x, levels, costs, least, best);
    case 5:
      return viterbi_step<5>(x, levels, costs, least, best);
    case 6:
      return viterbi_step<6>(x, levels, costs, least, best);
    default:
      KVANT_CHECK(false, "trellis codes have 1 to 6 bits");
  }
}

class Viterbi {
 public:
  Viterbi(const TrellisTable& table, int most_steps)
      : bits_(table.bits),
        groups_(kTrellisStates >> table.bits),
        levels_(trellis_levels(table)),
        costs_(kTrellisStates),
        least_(groups_) {
    best_.resize(static_cast<std::size_t>(most_steps) * groups_);
  }

  // Paths may begin anywhere.
  void begin() {
    for (Lanes& cost : costs_) cost.fill(0);
    n_ = 0;
  }
  void begin(const States& states) {
    for (Lanes& cost : costs_) cost.fill(kForbidden);
    for (int row = 0; row < kTrellisRows; ++row) costs_[states[row]][row] = 0;
    n_ = 0;
  }

  // x: the next value of each row.
  void step(const Lanes& x) {
    step_of_bits(bits_, x.data(), levels_.data(), costs_.data(), least_.data(), best_.data() + n_ * groups_);
    ++n_;
  }

  States cheapest() const {
    States states{};
    Lanes low = costs_[0];
    for (int s = 1; s < kTrellisStates; ++s) {
      for (int row = 0; row < kTrellisRows; ++row) {
        if (costs_[s][row] >= low[row]) continue;
        low[row] = costs_[s][row];
        states[row] = static_cast<std::uint8_t>(s);
      }
    }
    return states;
  }

  // Calls visit(step, states) for the paths that end in `states`, from the last step to step `first`.
  template <class Visit>
  void trace(States states, std::ptrdiff_t first, const Visit& visit) const {
    for (std::ptrdiff_t step = n_ - 1; step >= first; --step) {
      visit(step, states);
      const Steps* best = best_.data() + step * groups_;
      for (int row = 0; row < kTrellisRows; ++row) {
        const int p = states[row] & (groups_ - 1);
        states[row] = static_cast<std::uint8_t>(p << bits_ | best[p][row]);
      }
    }
  }

 private:
  int bits_;
  int groups_;  // sets of states that share their predecessors
  TrellisLevels levels_;
  std::vector<Lanes> costs_;  // [kTrellisStates]
  std::vector<Lanes> least_;  // [groups_]
  std::vector<Steps> best_;   // [steps][groups_]
  std::ptrdiff_t n_ = 0;      // steps taken
};

Lanes lanes_of(const float* values, int n, int i) {
  Lanes x;
  for (int row = 0; row < kTrellisRows; ++row) x[row] = values[static_cast<std::ptrdiff_t>(row) * n + i];
  return x;
}

// The state before value 0, from the values around the row's ends.
States state_at_the_seam(Viterbi& viterbi, const float* values, int n) {
  const int run_in = std::min(kRunIn, n / 2);
  viterbi.begin();
  for (int i = n - run_in; i < n; ++i) viterbi.step(lanes_of(values, n, i));
  for (int i = 0; i < run_in; ++i) viterbi.step(lanes_of(values, n, i));
  States seam{};
  viterbi.trace(viterbi.cheapest(), run_in - 1, [&](std::ptrdiff_t step, const States& states) {
    if (step == run_in - 1) seam = states;
  });
  return seam;
}

// levels[i] = table[the 8 bits that end at bit (i + 1) * bits]; `stream` begins with 8 bits from before bit 0
// and has a byte more than it needs.
KVANT_SIMD_CLONES void look_up_states(const std::byte* stream, int n, int bits, const float* table,
                                      float* levels) {
  for (int i = 0; i < n; ++i) {
    const int first = (i + 1) * bits;
    std::uint16_t pair;
    std::memcpy(&pair, stream + first / 8, sizeof pair);
    levels[i] = table[pair >> (first % 8) & (kTrellisStates - 1)];
  }
}

}  // namespace

void encode_trellis(const float* values, int n, const TrellisTable& table, std::uint16_t* symbols) {
  KVANT_CHECK(n % 8 == 0 && n >= 16 && n <= kMaxHeadDim, "a trellis row has 16 to 256 values");
  Viterbi viterbi(table, n);
  const States seam = state_at_the_seam(viterbi, values, n);
  viterbi.begin(seam);
  for (int i = 0; i < n; ++i) viterbi.step(lanes_of(values, n, i));
  viterbi.trace(seam, 0, [&](std::ptrdiff_t i, const States& states) {
    for (int row = 0; row < kTrellisRows; ++row)
      symbols[row * n + i] = static_cast<std::uint16_t>(states[row] >> (kTrellisBits - table.bits));
  });
}

TrellisLevels trellis_levels(const TrellisTable& table) {
  TrellisLevels levels;
  for (int s = 0; s < kTrellisStates; ++s) levels[s] = table.scale * static_cast<float>(table.levels[s]);
  return levels;
}

void decode_trellis(const std::byte* packed, int n, int bits, const TrellisLevels& levels, float* shape) {
  const int size = n * bits / 8;
  std::array<std::byte, kMaxHeadDim * kMostTrellisBits / 8 + 2> stream;
  stream[0] = packed[size - 1];
  std::memcpy(stream.data() + 1, packed, size);
  stream[size + 1] = packed[0];
  look_up_states(stream.data(), n, bits, levels.data(), shape);
}

}  // namespace kvant
