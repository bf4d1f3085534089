// The search in AVX-512: 16 branches at a time.
#include "format/shaped_search.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#include <cstddef>

namespace kvant {
namespace {

constexpr int kLanes = 16;
constexpr int kStates = 256;
constexpr float kFar = 1e30F;

using Floats = __m512;
using Ints = __m512i;

// Which branches stand where. A vector holds branches to 16 nodes or, for fewer nodes, several to each;
// vectors of one group lead to the same nodes.
template <int B>
struct Order {
  static constexpr int kNodes = kStates >> B;
  static constexpr int kGroups = kNodes > kLanes ? kNodes / kLanes : 1;
  static constexpr int kVectors = kLanes / kGroups;  // of a group
  static constexpr int kRegisters =
      kNodes > kLanes ? kNodes / kLanes : 1;  // that hold a number of every node
  static constexpr int kStride = kRegisters * kLanes;
};

// State of a lane of vector v of group g.
template <int B>
int state_at(int g, int v, int lane) {
  using O = Order<B>;
  const int node = g * kLanes + lane % O::kNodes;
  const int branch = O::kNodes >= kLanes ? v : v * (kLanes / O::kNodes) + lane / O::kNodes;
  return node << B | branch;
}

// table[index] of a table of kRegisters registers.
template <int kRegisters>
[[gnu::always_inline]] inline Floats look_up(const float* table, Ints index) {
  if constexpr (kRegisters == 1) {
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
  } else if constexpr (kRegisters == 2) {
    return _mm512_permutex2var_ps(_mm512_loadu_ps(table), index, _mm512_loadu_ps(table + kLanes));
  } else {
    constexpr int kHalf = kRegisters / 2;
    const __mmask16 high = _mm512_test_epi32_mask(index, _mm512_set1_epi32(kHalf * kLanes));
    return _mm512_mask_blend_ps(high, look_up<kHalf>(table, index),
                                look_up<kHalf>(table + kHalf * kLanes, index));
  }
}

template <int B>
struct Tables {
  alignas(64) float levels[kLanes][kLanes];
  alignas(64) std::int32_t states[kLanes][kLanes];
  alignas(64) std::int32_t parents[kLanes][kLanes];

  explicit Tables(const float* of_states) {
    using O = Order<B>;
    for (int g = 0; g < O::kGroups; ++g) {
      for (int v = 0; v < O::kVectors; ++v) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int state = state_at<B>(g, v, lane), at = g * O::kVectors + v;
          levels[at][lane] = of_states[state];
          states[at][lane] = state;
          parents[at][lane] = state & (O::kNodes - 1);
        }
      }
    }
  }
};

// The paths that survive, by the node that they lead to; for fewer than 16 nodes, repeated.
template <int B>
struct Survivors {
  alignas(64) float cost[Order<B>::kStride];
  alignas(64) float along[kMetricRank][Order<B>::kStride];
};

struct Best {
  Floats cost, level;
  Ints state;
};

// The cheaper one, or that of the lower state.
[[gnu::always_inline]] inline Best cheaper(const Best& a, const Best& b) {
  const __mmask16 less = _mm512_cmp_ps_mask(b.cost, a.cost, _CMP_LT_OQ);
  const __mmask16 equal = _mm512_cmp_ps_mask(b.cost, a.cost, _CMP_EQ_OQ);
  const __mmask16 take = less | (equal & _mm512_cmplt_epi32_mask(b.state, a.state));
  return {_mm512_mask_blend_ps(take, a.cost, b.cost), _mm512_mask_blend_ps(take, a.level, b.level),
          _mm512_mask_blend_epi32(take, a.state, b.state)};
}

template <int kDistance>
[[gnu::always_inline]] inline Best against_lanes(const Best& a) {
  const Ints index = _mm512_xor_si512(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                      _mm512_set1_epi32(kDistance));
  return cheaper(a, {_mm512_permutexvar_ps(index, a.cost), _mm512_permutexvar_ps(index, a.level),
                     _mm512_permutexvar_epi32(index, a.state)});
}

template <int B>
[[gnu::always_inline]] inline void extend(const Survivors<B>& before, const FeedbackStep& step,
                                          const Tables<B>& tables, float x, Survivors<B>& after,
                                          std::uint8_t* states) {
  using O = Order<B>;
  alignas(64) float targets[O::kStride];
  for (int r = 0; r < O::kRegisters; ++r) {
    Floats target = _mm512_set1_ps(x);
    for (int k = 0; k < kMetricRank; ++k)
      target = _mm512_fmadd_ps(_mm512_set1_ps(step.feedback[k]), _mm512_load_ps(before.along[k] + r * kLanes),
                               target);
    _mm512_store_ps(targets + r * kLanes, target);
  }
  const Floats weight = _mm512_set1_ps(step.weight);
  constexpr int kTables = B == 1 ? 2 : O::kRegisters;   // that hold the parents of a group
  constexpr int kPeriod = B == 1 ? O::kGroups / 2 : 1;  // groups of the same numbers of parents
  constexpr int kShared = O::kGroups > 1 ? O::kVectors : 1;
  for (int p = 0; p < kPeriod; ++p) {
    const int first = p * kTables * kLanes;
    Floats shared_target[kShared], shared_cost[kShared];  // of the parents, for several groups
    for (int v = 0; O::kGroups > 1 && v < kShared; ++v) {
      const Ints nearby = _mm512_and_si512(_mm512_load_si512(tables.parents[p * O::kVectors + v]),
                                           _mm512_set1_epi32(kTables * kLanes - 1));
      shared_target[v] = look_up<kTables>(targets + first, nearby);
      shared_cost[v] = look_up<kTables>(before.cost + first, nearby);
    }
    for (int g = p; g < O::kGroups; g += kPeriod) {
      Best best{};
#pragma GCC unroll 16
      for (int v = 0; v < O::kVectors; ++v) {
        const int at = g * O::kVectors + v;
        const Floats level = _mm512_load_ps(tables.levels[at]);
        Floats target, cost_before;
        if constexpr (O::kGroups > 1) {
          target = shared_target[v];
          cost_before = shared_cost[v];
        } else if constexpr (O::kNodes == kLanes) {  // all nodes have the same parent
          target = _mm512_set1_ps(targets[v]);
          cost_before = _mm512_set1_ps(before.cost[v]);
        } else {
          const Ints parents = _mm512_load_si512(tables.parents[at]);
          target = look_up<1>(targets, parents);
          cost_before = look_up<1>(before.cost, parents);
        }
        const Floats error = _mm512_sub_ps(target, level);
        const Floats cost = _mm512_fmadd_ps(_mm512_mul_ps(error, weight), error, cost_before);
        const Ints state = _mm512_load_si512(tables.states[at]);
        if (v == 0) {
          best = {cost, level, state};
          continue;
        }
        const __mmask16 less = _mm512_cmp_ps_mask(cost, best.cost, _CMP_LT_OQ);
        best.cost = _mm512_min_ps(cost, best.cost);
        best.level = _mm512_mask_blend_ps(less, best.level, level);
        best.state = _mm512_mask_blend_epi32(less, best.state, state);
      }
      if constexpr (O::kNodes <= 4) best = against_lanes<4>(best);
      if constexpr (O::kNodes <= 8) best = against_lanes<8>(best);
      _mm512_store_ps(after.cost + g * kLanes, best.cost);
      const Ints among =
          _mm512_and_si512(best.state, _mm512_set1_epi32((B == 1 ? kTables * kLanes : O::kNodes) - 1));
      const Floats error = _mm512_sub_ps(_mm512_set1_ps(x), best.level);
#pragma GCC unroll 8
      for (int k = 0; k < kMetricRank; ++k)
        _mm512_store_ps(after.along[k] + g * kLanes,
                        _mm512_fmadd_ps(_mm512_set1_ps(step.directions[k]), error,
                                        look_up<kTables>(before.along[k] + first, among)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(states + g * kLanes), _mm512_cvtepi32_epi8(best.state));
    }
  }
}

// kRows rows side by side, so that their steps don't wait for each other.
template <int B, int kRows>
void search_together(const Tables<B>& tables, const FeedbackStep* steps, int n, const ShapedRow* rows,
                     std::uint8_t* trace) {
  using O = Order<B>;
  Survivors<B> paths[2][kRows];
  for (int row = 0; row < kRows; ++row) {
    paths[0][row] = {};
    for (int q = 0; q < O::kStride; ++q) paths[0][row].cost[q] = q % O::kNodes == rows[row].seam ? 0 : kFar;
  }
  for (int i = 0; i < n; ++i) {
    for (int row = 0; row < kRows; ++row)
      extend<B>(paths[i % 2][row], steps[i], tables, rows[row].values[i], paths[(i + 1) % 2][row],
                trace + (static_cast<std::ptrdiff_t>(i) * kRows + row) * O::kStride);
  }
  for (int row = 0; row < kRows; ++row) {
    int node = rows[row].seam;
    for (int i = n - 1; i >= 0; --i) {
      const std::uint8_t state = trace[(static_cast<std::ptrdiff_t>(i) * kRows + row) * O::kStride + node];
      rows[row].states[i] = state;
      node = state & (O::kNodes - 1);
    }
  }
}

template <int B>
void search_all(const float* levels, const FeedbackStep* steps, int n, const ShapedRow* rows, int n_rows,
                std::uint8_t* trace) {
  constexpr int kRows = 2;
  static_assert(kRows * Order<B>::kStride <= kShapedTrace);
  const Tables<B> tables(levels);
  int row = 0;
  for (; row + kRows <= n_rows; row += kRows) search_together<B, kRows>(tables, steps, n, rows + row, trace);
  for (; row < n_rows; ++row) search_together<B, 1>(tables, steps, n, rows + row, trace);
}

void search(int bits, const float* levels, const FeedbackStep* steps, int n, const ShapedRow* rows,
            int n_rows, std::uint8_t* trace) {
  switch (bits) {
    case 1:
      return search_all<1>(levels, steps, n, rows, n_rows, trace);
    case 2:
      return search_all<2>(levels, steps, n, rows, n_rows, trace);
    case 3:
      return search_all<3>(levels, steps, n, rows, n_rows, trace);
    case 4:
      return search_all<4>(levels, steps, n, rows, n_rows, trace);
    case 5:
      return search_all<5>(levels, steps, n, rows, n_rows, trace);
    default:
      return search_all<6>(levels, steps, n, rows, n_rows, trace);
  }
}

}  // namespace

const ShapedKernel* avx512_shaped_search() {
  static constexpr ShapedKernel kKernel = {"avx512", search};
  return &kKernel;
}

}  // namespace kvant

#else

namespace kvant {

const ShapedKernel* avx512_shaped_search() {
  return nullptr;
}

}  // namespace kvant

#endif
