// Implements the search of shaped_search.h in NEON. A register holds four nodes with their costs and targets,
// or the sums of one node's errors along all directions.
#include "format/shaped_search.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstddef>

namespace kvant {
namespace {

constexpr int kLanes = 4;
static_assert(kMetricRank == 8, "the sums of a node fill a register");

template <int B>
struct Nodes {
  static constexpr int kCount = 256 >> B;
  static constexpr int kMemory = 8 - B;  // bits of a node
  static constexpr std::uint32_t kChoice = (1U << B) - 1;
  static constexpr int kParents = kCount < 1 << B ? kCount : 1 << B;
  static constexpr int kRegisters = kCount / kLanes;
  // Nodes q and q + kOthers have the same parents.
  static constexpr int kOthers = kCount / kParents;
  static constexpr int kParentRegisters = kOthers > kLanes ? kOthers / kLanes : 1;
};

// Holds the surviving paths, indexed by the node that they lead to.
template <int B>
struct Survivors {
  alignas(16) std::uint32_t cost[Nodes<B>::kCount];
  int16x8_t along[Nodes<B>::kCount];
};

// Holds what all rows share.
template <int B>
struct Tables {
  alignas(16) std::int32_t by_branch[1 << B][Nodes<B>::kCount];  // the level of branch k to each node
  std::int16_t levels[256];

  explicit Tables(const ShapedCode& code) {
    for (int state = 0; state < 256; ++state) {
      levels[state] = static_cast<std::int16_t>(code.levels[state] * (1 << code.level_shift));
      by_branch[state & Nodes<B>::kChoice][state >> B] = levels[state];
    }
  }
};

// Holds targets or costs of the parents of nodes. of[k] has the numbers of parent k for the first kOthers
// nodes, and all other nodes use the same numbers. If kOthers is 1, the number fills a register.
template <int B>
struct Parents {
  int32x4_t of[Nodes<B>::kParents][Nodes<B>::kParentRegisters];
};

template <int Lane>
[[gnu::always_inline]] inline int32x4_t filled(int32x4_t x) {
  return vdupq_laneq_s32(x, Lane);
}

// Parent k of node q is node q kParents + k, modulo kCount.
template <int B>
[[gnu::always_inline]] inline void arrange(const std::int32_t* nodes, Parents<B>& parents) {
  if constexpr (B == 1) {
#pragma GCC unroll 16
    for (int r = 0; r < Nodes<B>::kParentRegisters; ++r) {
      const int32x4x2_t two = vld2q_s32(nodes + r * 2 * kLanes);
      for (int k = 0; k < 2; ++k) parents.of[k][r] = two.val[k];
    }
  } else if constexpr (B == 2) {
#pragma GCC unroll 4
    for (int r = 0; r < Nodes<B>::kParentRegisters; ++r) {
      const int32x4x4_t four = vld4q_s32(nodes + r * 4 * kLanes);
      for (int k = 0; k < 4; ++k) parents.of[k][r] = four.val[k];
    }
  } else if constexpr (B == 3) {
    const int32x4x4_t low = vld4q_s32(nodes), high = vld4q_s32(nodes + 16);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      parents.of[k][0] = vuzp1q_s32(low.val[k], high.val[k]);
      parents.of[4 + k][0] = vuzp2q_s32(low.val[k], high.val[k]);
    }
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < Nodes<B>::kRegisters; ++r) {
      const int32x4_t four = vld1q_s32(nodes + r * kLanes);
      parents.of[4 * r][0] = filled<0>(four);
      parents.of[4 * r + 1][0] = filled<1>(four);
      parents.of[4 * r + 2][0] = filled<2>(four);
      parents.of[4 * r + 3][0] = filled<3>(four);
    }
  }
}

template <int B>
[[gnu::always_inline]] inline void find_targets(const Survivors<B>& paths, const ShapedStep& step, int x,
                                                std::int32_t* targets) {
  constexpr int kHalf = 1 << (kTargetShift + shaped_grain(B)) >> 1;
  const int16x8_t feedback = vld1q_s16(step.feedback);
  const int32x4_t start = vdupq_n_s32(x * (1 << kTargetShift) + kHalf);
  const int32x4_t grain = vdupq_n_s32(-(1 << shaped_grain(B)));
#pragma GCC unroll 4
  for (int q = 0; q < Nodes<B>::kCount; q += kLanes) {
    int32x4_t products[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const int16x8_t along = paths.along[q + i];
      products[i] = vmlal_high_s16(vmull_s16(vget_low_s16(along), vget_low_s16(feedback)), along, feedback);
    }
    const int32x4_t sums = vpaddq_s32(vpaddq_s32(products[0], products[1]),  //
                                      vpaddq_s32(products[2], products[3]));
    const int32x4_t target = vshrq_n_s32(vaddq_s32(start, sums), kTargetShift);
    const int32x4_t reached = vmaxq_s32(vminq_s32(target, vdupq_n_s32(kReach - 1)), vdupq_n_s32(-kReach));
    vst1q_s32(targets + q, vandq_s32(reached, grain));
  }
}

// Computes the costs of the cheapest branches to each node.
template <int B>
[[gnu::always_inline]] inline void find_best(const Parents<B>& targets, const Parents<B>& costs,
                                             const Tables<B>& tables, uint32x4_t* best) {
  using N = Nodes<B>;
#pragma GCC unroll 4
  for (int r = 0; r < N::kRegisters; ++r) {
    best[r] = vdupq_n_u32(~0U);
    // With more than 4 bits, several states lead from a parent to a node.
    for (int first = 0; first < 1 << B; first += N::kParents) {
      uint32x4_t low = vdupq_n_u32(~0U);
#pragma GCC unroll 16
      for (int k = 0; k < N::kParents; ++k) {
        const int32x4_t error = vsubq_s32(targets.of[k][r % N::kParentRegisters],
                                          vld1q_s32(tables.by_branch[first + k] + r * kLanes));
        low = vminq_u32(low,
                        vreinterpretq_u32_s32(vmlaq_s32(costs.of[k][r % N::kParentRegisters], error, error)));
      }
      best[r] = vminq_u32(best[r], B > 4 ? vaddq_u32(low, vdupq_n_u32(first)) : low);
    }
  }
}

template <int B>
[[gnu::always_inline]] inline void settle(const ShapedStep& step, uint32x4_t* costs) {
  uint32x4_t low = costs[0];
  for (int r = 1; r < Nodes<B>::kRegisters; ++r) low = vminq_u32(low, costs[r]);
  const uint32x4_t least = vdupq_n_u32(vminvq_u32(low) & ~Nodes<B>::kChoice);
  const uint32x4_t limit = vdupq_n_u32(static_cast<std::uint32_t>(step.limit));
  for (int r = 0; r < Nodes<B>::kRegisters; ++r) {
    const int32x4_t cost = vreinterpretq_s32_u32(vminq_u32(vsubq_u32(costs[r], least), limit));
    costs[r] = vreinterpretq_u32_s32(vcvtq_s32_f32(vmulq_n_f32(vcvtq_f32_s32(cost), step.fade)));
  }
}

// Computes the surviving paths, whose costs are best[r], and writes the state of each to `states`.
template <int B>
[[gnu::always_inline]] inline void survive(const ShapedStep& step, int x, const Tables<B>& tables,
                                           uint32x4_t* best, const Survivors<B>& before, Survivors<B>& after,
                                           std::uint8_t* states) {
  using N = Nodes<B>;
  const uint32x4_t choice = vdupq_n_u32(N::kChoice);
  const uint32x4_t lanes = {0, 1, 2, 3};
  const int16x8_t directions = vld1q_s16(step.directions), value = vdupq_n_s16(static_cast<std::int16_t>(x));
  alignas(16) std::uint32_t of_nodes[N::kCount];
#pragma GCC unroll 4
  for (int r = 0; r < N::kRegisters; ++r) {
    const uint32x4_t nodes = vaddq_u32(lanes, vdupq_n_u32(r * kLanes));
    vst1q_u32(of_nodes + r * kLanes, vbslq_u32(choice, best[r], vshlq_n_u32(nodes, B)));
  }
  for (int q = 0; q < N::kCount; ++q) {
    const std::uint32_t state = of_nodes[q];
    const int16x8_t error = vsubq_s16(value, vld1q_dup_s16(tables.levels + state));
    after.along[q] = vaddq_s16(before.along[state & (N::kCount - 1)], vqrdmulhq_s16(directions, error));
    states[q] = static_cast<std::uint8_t>(state);
  }
  if (step.settles) settle<B>(step, best);
#pragma GCC unroll 4
  for (int r = 0; r < N::kRegisters; ++r) {
    const uint32x4_t nodes = vaddq_u32(lanes, vdupq_n_u32(r * kLanes));
    vst1q_u32(after.cost + r * kLanes, vbslq_u32(choice, nodes, best[r]));
  }
}

template <int B>
void bar_other_seams(int i, int seam, Survivors<B>& paths) {
  const int left = Nodes<B>::kMemory - i * B;
  const int known = (1 << (left < B ? left : B)) - 1;
  for (int q = 0; q < Nodes<B>::kCount; ++q)
    if (((q ^ seam >> (i * B)) & known) != 0) paths.cost[q] |= kBarred;
}

template <int B>
void search_row(const ShapedCode& code, const Tables<B>& tables, const ShapedRow& row, std::uint8_t* trace) {
  using N = Nodes<B>;
  Survivors<B> paths[2];
  for (int q = 0; q < N::kCount; ++q) {
    paths[0].cost[q] = q & N::kChoice;
    paths[0].along[q] = vdupq_n_s16(0);
  }
  for (int i = 0; i < code.n; ++i) {
    Survivors<B>&before = paths[i % 2], &after = paths[(i + 1) % 2];
    const ShapedStep& step = code.steps[i];
    if (i * B < N::kMemory) bar_other_seams(i, row.seam, before);
    alignas(16) std::int32_t targets[N::kCount];
    find_targets(before, step, row.values[i], targets);
    Parents<B> of_parents, costs;
    arrange(targets, of_parents);
    arrange(reinterpret_cast<const std::int32_t*>(before.cost), costs);
    uint32x4_t best[N::kRegisters];
    find_best(of_parents, costs, tables, best);
    survive(step, row.values[i], tables, best, before, after,
            trace + static_cast<std::ptrdiff_t>(i) * N::kCount);
  }
  int node = row.seam;
  for (int i = code.n - 1; i >= 0; --i) {
    row.states[i] = trace[static_cast<std::ptrdiff_t>(i) * N::kCount + node];
    node = row.states[i] & (N::kCount - 1);
  }
}

template <int B>
void search_all(const ShapedCode& code, const ShapedRow* rows, int n_rows, std::uint8_t* trace) {
  const Tables<B> tables(code);
  for (int row = 0; row < n_rows; ++row) search_row<B>(code, tables, rows[row], trace);
}

void search(const ShapedCode& code, const ShapedRow* rows, int n_rows, std::uint8_t* trace) {
  using Search = void (*)(const ShapedCode&, const ShapedRow*, int, std::uint8_t*);
  constexpr Search kOfBits[] = {nullptr,       search_all<1>, search_all<2>, search_all<3>,
                                search_all<4>, search_all<5>, search_all<6>};
  kOfBits[code.trellis->bits](code, rows, n_rows, trace);
}

}  // namespace

const ShapedKernel* neon_shaped_search() {
  static constexpr ShapedKernel kKernel = {"neon", search};
  return &kKernel;
}

}  // namespace kvant

#else

namespace kvant {

const ShapedKernel* neon_shaped_search() {
  return nullptr;
}

}  // namespace kvant

#endif
