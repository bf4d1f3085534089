#include "format/shaped_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/simd_clones.h"
#include "format/trellis.h"

namespace kvant {
namespace {

constexpr float kFar = 1e30F;  // the cost of a path that doesn't begin in the seam

// The paths that survive, by the node that they lead to.
template <int B>
struct Survivors {
  static constexpr int kNodes = kTrellisStates >> B;
  float cost[kNodes];
  float along[kMetricRank][kNodes];  // s: errors along the metric's directions
};

// targets[q]: x + g.s of the path to node q.
template <int B>
[[gnu::always_inline]] inline void find_targets(const Survivors<B>& paths, const FeedbackStep& step, float x,
                                                float* targets) {
  for (int q = 0; q < Survivors<B>::kNodes; ++q) {
    float target = x;
    for (int r = 0; r < kMetricRank; ++r) target = std::fma(step.feedback[r], paths.along[r][q], target);
    targets[q] = target;
  }
}

// Numbers of every state, by branch: [k][q] is that of the state q << B | k, which leads to node q.
template <int B>
struct ByBranch {
  static constexpr int kNodes = kTrellisStates >> B;
  float of[1 << B][kNodes];

  void set_states(const float* numbers) {
    for (int k = 0; k < 1 << B; ++k)
      for (int q = 0; q < kNodes; ++q) of[k][q] = numbers[q << B | k];
  }
  // Of the states' parents, by node. They repeat after kPeriod nodes.
  [[gnu::always_inline]] void set_parents(const float* numbers) {
    constexpr int kPeriod = kNodes >> B > 0 ? kNodes >> B : 1;
    for (int k = 0; k < 1 << B; ++k) {
      float period[kPeriod];
      for (int j = 0; j < kPeriod; ++j) period[j] = numbers[(j << B | k) & (kNodes - 1)];
      for (int q = 0; q < kNodes; ++q) of[k][q] = period[q % kPeriod];
    }
  }
};

// Of the branches to each node the cheapest, the one of the lowest state among equals.
template <int B>
[[gnu::always_inline]] inline void extend(const Survivors<B>& before, const FeedbackStep& step,
                                          const float* levels, const ByBranch<B>& levels_by_branch, float x,
                                          Survivors<B>& after, std::uint8_t* states) {
  constexpr int kNodes = Survivors<B>::kNodes;
  float targets[kNodes];
  find_targets<B>(before, step, x, targets);
  ByBranch<B> target, cost_before;
  target.set_parents(targets);
  cost_before.set_parents(before.cost);
  float best[kNodes];
  std::int32_t chosen[kNodes];
  for (int q = 0; q < kNodes; ++q) {
    best[q] = INFINITY;
    chosen[q] = 0;
  }
  for (int k = 0; k < 1 << B; ++k) {
    for (int q = 0; q < kNodes; ++q) {
      const float error = target.of[k][q] - levels_by_branch.of[k][q];
      const float cost = std::fma(error * step.weight, error, cost_before.of[k][q]);
      chosen[q] = cost < best[q] ? q << B | k : chosen[q];
      best[q] = cost < best[q] ? cost : best[q];
    }
  }
  float errors[kNodes];
  for (int q = 0; q < kNodes; ++q) {
    after.cost[q] = best[q];
    errors[q] = x - levels[chosen[q]];
    states[q] = static_cast<std::uint8_t>(chosen[q]);
  }
  for (int r = 0; r < kMetricRank; ++r) {
    for (int q = 0; q < kNodes; ++q)
      after.along[r][q] = std::fma(step.directions[r], errors[q], before.along[r][chosen[q] & (kNodes - 1)]);
  }
}

template <int B>
[[gnu::always_inline]] inline void search_bits(const float* levels, const FeedbackStep* steps, int n,
                                               const ShapedRow& row, std::uint8_t* trace) {
  constexpr int kNodes = Survivors<B>::kNodes;
  ByBranch<B> levels_by_branch;
  levels_by_branch.set_states(levels);
  Survivors<B> paths[2] = {};
  for (int q = 0; q < kNodes; ++q) paths[0].cost[q] = q == row.seam ? 0 : kFar;
  for (int i = 0; i < n; ++i)
    extend<B>(paths[i % 2], steps[i], levels, levels_by_branch, row.values[i], paths[(i + 1) % 2],
              trace + static_cast<std::ptrdiff_t>(i) * kNodes);
  int node = row.seam;
  for (int i = n - 1; i >= 0; --i) {
    row.states[i] = trace[static_cast<std::ptrdiff_t>(i) * kNodes + node];
    node = row.states[i] & (kNodes - 1);
  }
}

KVANT_SIMD_CLONES void search_row(int bits, const float* levels, const FeedbackStep* steps, int n,
                                  const ShapedRow& row, std::uint8_t* trace) {
  switch (bits) {
    case 1:
      return search_bits<1>(levels, steps, n, row, trace);
    case 2:
      return search_bits<2>(levels, steps, n, row, trace);
    case 3:
      return search_bits<3>(levels, steps, n, row, trace);
    case 4:
      return search_bits<4>(levels, steps, n, row, trace);
    case 5:
      return search_bits<5>(levels, steps, n, row, trace);
    default:
      return search_bits<6>(levels, steps, n, row, trace);
  }
}

void search(int bits, const float* levels, const FeedbackStep* steps, int n, const ShapedRow* rows,
            int n_rows, std::uint8_t* trace) {
  for (int row = 0; row < n_rows; ++row) search_row(bits, levels, steps, n, rows[row], trace);
}

#if defined(__x86_64__)
bool runs_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma");
}
#else
bool runs_avx512() {
  return false;
}
#endif

}  // namespace

const ShapedKernel& portable_shaped_search() {
  static constexpr ShapedKernel kernel = {"portable", search};
  return kernel;
}

const ShapedKernel& best_shaped_search() {
  const ShapedKernel* avx512 = runs_avx512() ? avx512_shaped_search() : nullptr;
  return avx512 != nullptr ? *avx512 : portable_shaped_search();
}

}  // namespace kvant
