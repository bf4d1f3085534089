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

// Which branches stand where. A vector holds branches to 16 nodes or, for fewer nodes, several to each; vectors
// of one group lead to the same nodes.
template <int B>
struct Order {
  static constexpr int kNodes = kStates >> B;
  static constexpr int kGroups = kNodes > kLanes ? kNodes / kLanes : 1;
  static constexpr int kVectors = kLanes / kGroups;  // of a group
  static constexpr int kRegisters = kNodes > kLanes ? kNodes / kLanes : 1;  // that hold a number of every node
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
    return _mm512_mask_blend_ps(high, look_up<kHalf>(table, index), look_up<kHalf>(table + kHalf * kLanes, index));
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
  const Ints index = _mm512_xor_si512(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(kDistance));
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
  for (int g = 0; g < O::kGroups; ++g) {
    Best best{};
#pragma GCC unroll 16
    for (int v = 0; v < O::kVectors; ++v) {
      const int at = g * O::kVectors + v;
      const Ints parents = _mm512_load_si512(tables.parents[at]);
      const Floats level = _mm512_load_ps(tables.levels[at]);
      const Floats error = _mm512_sub_ps(look_up<O::kRegisters>(targets, parents), level);
      const Floats cost = _mm512_fmadd_ps(_mm512_mul_ps(error, weight), error,
                                          look_up<O::kRegisters>(before.cost, parents));
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
    const Ints parents = _mm512_and_si512(best.state, _mm512_set1_epi32(O::kNodes - 1));
    const Floats error = _mm512_sub_ps(_mm512_set1_ps(x), best.level);
#pragma GCC unroll 8
    for (int k = 0; k < kMetricRank; ++k)
      _mm512_store_ps(after.along[k] + g * kLanes,
                      _mm512_fmadd_ps(_mm512_set1_ps(step.directions[k]), error,
                                      look_up<O::kRegisters>(before.along[k], parents)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(states + g * kLanes), _mm512_cvtepi32_epi8(best.state));
  }
}

template <int B>
void search_bits(const float* levels, const FeedbackStep* steps, int n, const ShapedRow& row,
                 std::uint8_t* trace) {
  using O = Order<B>;
  const Tables<B> tables(levels);
  Survivors<B> paths[2] = {};
  for (int q = 0; q < O::kStride; ++q) paths[0].cost[q] = q % O::kNodes == row.seam ? 0 : kFar;
  for (int i = 0; i < n; ++i)
    extend<B>(paths[i % 2], steps[i], tables, row.values[i], paths[(i + 1) % 2],
              trace + static_cast<std::ptrdiff_t>(i) * O::kStride);
  int node = row.seam;
  for (int i = n - 1; i >= 0; --i) {
    row.states[i] = trace[static_cast<std::ptrdiff_t>(i) * O::kStride + node];
    node = row.states[i] & (O::kNodes - 1);
  }
}

void search(int bits, const float* levels, const FeedbackStep* steps, int n, const ShapedRow& row,
            std::uint8_t* trace) {
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
