// Implements the search of shaped_search.h in AVX-512. The code handles 16 branches at a time, in 32-bit
// lanes. A lane holds two sums or two errors.
#include "format/shaped_search.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>

#include <cstddef>

namespace kvant {
namespace {

constexpr int kLanes = 16;

using Ints = __m512i;

[[gnu::always_inline]] inline Ints all(std::uint32_t x) {
  return _mm512_set1_epi32(static_cast<int>(x));
}
[[gnu::always_inline]] inline Ints load(const void* from) {
  return _mm512_load_si512(from);
}
[[gnu::always_inline]] inline void store(void* to, Ints x) {
  _mm512_store_si512(to, x);
}
// everywhere() broadcasts one number to every lane, and four_times() broadcasts four numbers to every
// quarter. Loads broadcast for free. Compilers that know how the numbers reached memory would shuffle
// registers instead, and a step already has enough shuffles. The loads are therefore in assembly.
[[gnu::always_inline]] inline Ints everywhere(const void* one) {
  Ints x;
  asm("vpbroadcastd %1, %0" : "=v"(x) : "m"(*static_cast<const char(*)[4]>(one)));
  return x;
}
[[gnu::always_inline]] inline Ints four_times(const void* four) {
  Ints x;
  asm("vbroadcasti32x4 %1, %0" : "=v"(x) : "m"(*static_cast<const char(*)[16]>(four)));
  return x;
}
[[gnu::always_inline]] inline Ints lesser(Ints a, Ints b) {
  return _mm512_min_epu32(a, b);
}
// Returns (x & mask) | y.
[[gnu::always_inline]] inline Ints masked_or(Ints x, Ints mask, Ints y) {
  return _mm512_ternarylogic_epi32(x, mask, y, 0xea);
}

#include "format/shaped_vectors_body.h"

template <int B>
struct Layout : VectorLayout<B> {
  static constexpr int kRows = B == 1 ? 2 : B == 2 ? 4 : 8;

  static int node_at(int phase, int r, int lane) {
    if constexpr (B == 2) {
      const int high = lane / 4, low = lane % 4;
      return phase == 0   ? 16 * r + 4 * high + low
             : phase == 1 ? 16 * high + 4 * r + low
                          : 16 * high + 4 * low + r;
    } else {
      return (r * kLanes + lane) % VectorLayout<B>::kNodes;
    }
  }
  static int state_at(int next_phase, int r, int v, int lane) {
    const int node = node_at(next_phase, r, lane);
    if constexpr (B <= 4) return node << B | v;
    if constexpr (B == 5) return node << B | v / 4 << 3 | v % 4 * 2 | lane / 8;
    return node << B | v << 2 | lane / 4;
  }
};

struct Constants {
  Lanes half;         // half of the step to which targets are rounded
  Lanes grain;        // mask that rounds targets down, for both halves if a lane has two targets
  Lanes unit;         // level_unit in the upper half of a lane, and in the lower if a lane has two targets
  Lanes level_shift;  // shift of a level in a lane's highest byte
  Lanes level_shift_of_words;  // shift of a level in the upper byte of both halves
  Lanes mix, fold, fold_mask;  // numbers of TrellisCode for states in the highest byte

  explicit Constants(const ShapedCode& code)
      : half(1 << (kTargetShift + shaped_grain(code.trellis->bits)) >> 1),
        grain(static_cast<int>((0xffffU & ~0U << shaped_grain(code.trellis->bits)) *
                               (code.trellis->bits <= 3 ? 0x10001U : 1U))),
        unit(level_unit(code.level_shift) * (code.trellis->bits <= 3 ? 0x10001 : 0x10000)),
        level_shift(8 - code.level_shift),
        level_shift_of_words((8 - code.level_shift) * 0x10001),
        mix(code.trellis->mix),
        fold(code.trellis->fold),
        fold_mask(static_cast<int>(static_cast<std::uint32_t>(code.trellis->fold_mask) << 24)) {}
};

// Holds what all registers share in one step of a row.
struct Step {
  const ShapedStep& numbers;
  const Constants& constants;
  Ints value;  // x in both halves of every lane
  Ints start;  // x 2^kTargetShift + half

  [[gnu::always_inline]] Step(const ShapedStep& of_step, const Constants& of_code, std::int16_t x)
      : numbers(of_step), constants(of_code), value(_mm512_set1_epi16(x)) {
    start = _mm512_dpwssd_epi32(load(constants.half), value, all(1U << kTargetShift));
  }
};

// Computes the targets of all registers, with level_unit in the upper half of every lane.
template <int B>
[[gnu::always_inline]] inline void find_targets(const Survivors<B>& paths, const Step& step, Ints* targets) {
  constexpr int kRegisters = Layout<B>::kRegisters;
  const Ints grain = load(step.constants.grain), unit = load(step.constants.unit);
  Ints sums[kRegisters];  // targets times 2^kTargetShift, with Constants::half added
  for (int r = 0; r < kRegisters; ++r) sums[r] = step.start;
#pragma GCC unroll 4
  for (int k = 0; k < kPairs; ++k) {
    const Ints feedback = everywhere(step.numbers.feedback + 2 * k);
#pragma GCC unroll 8
    for (int r = 0; r < kRegisters; ++r)
      sums[r] = _mm512_dpwssd_epi32(sums[r], load(paths.along[k] + r * kLanes), feedback);
  }
  if constexpr (kRegisters == 1) {
    const Ints target = _mm512_srai_epi32(sums[0], kTargetShift);
    targets[0] = masked_or(
        _mm512_max_epi32(_mm512_min_epi32(target, _mm512_set1_epi32(kReach - 1)), _mm512_set1_epi32(-kReach)),
        grain, unit);
  } else {  // Saturation clamps twice the target to twice the reach.
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; r += 2) {
      const Ints twice = _mm512_packs_epi32(_mm512_srai_epi32(sums[r], kTargetShift - 1),
                                            _mm512_srai_epi32(sums[r + 1], kTargetShift - 1));
      const Ints both = _mm512_and_si512(_mm512_srai_epi16(twice, 1), grain);
      targets[r] = _mm512_unpacklo_epi16(both, unit);
      targets[r + 1] = _mm512_unpackhi_epi16(both, unit);
    }
  }
}

[[gnu::always_inline]] inline Ints branch(Ints target, Ints base, const std::int32_t* level) {
  return _mm512_dpwssd_epi32(base, target, load(level));
}

// Holds the targets and the bases of parents, in the order in which their branches are compared.
template <int B>
struct Parents {
  static constexpr int kVectors = B == 5 ? 4 : Layout<B>::kRegisters;
  alignas(64) std::uint32_t target[kVectors][kLanes];
  alignas(64) std::uint32_t base[kVectors][kLanes];

  [[gnu::always_inline]] void set(int vector, Ints of_targets, Ints of_bases) {
    store(target[vector], of_targets);
    store(base[vector], of_bases);
  }
};

// With 2 bits a node is three digits of base 4. A node's parents are the nodes whose upper two digits equal
// the node's lower two digits. One digit selects the register, and two digits select the lane. If a parent's
// last digit selects the lane, the parent's children use the parent's register. If the last digit selects the
// register, the children use the parent's lane. Data therefore moves only within registers, and after three
// steps every digit is back in its place.
template <int B, int kPhase>
[[gnu::always_inline]] inline void arrange_parents(const Survivors<B>& paths, const Step& step,
                                                   Parents<B>& parents) {
  constexpr int kRegisters = Layout<B>::kRegisters;
  Ints targets[kRegisters], bases[kRegisters];
  find_targets(paths, step, targets);
#pragma GCC unroll 8
  for (int r = 0; r < kRegisters; ++r)
    bases[r] = _mm512_dpwssd_epi32(load(paths.cost + r * kLanes), targets[r], targets[r]);
  if constexpr (B == 1) {  // Parents of node q are 2q and 2q + 1.
    const Ints even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const Ints odd = _mm512_or_si512(even, all(1));
#pragma GCC unroll 4
    for (int two = 0; two < 8; two += 2) {
      parents.set(two, _mm512_permutex2var_epi32(targets[two], even, targets[two + 1]),
                  _mm512_permutex2var_epi32(bases[two], even, bases[two + 1]));
      parents.set(two + 1, _mm512_permutex2var_epi32(targets[two], odd, targets[two + 1]),
                  _mm512_permutex2var_epi32(bases[two], odd, bases[two + 1]));
    }
  } else if constexpr (B == 2 && kPhase < 2) {
    const Ints last_digit_first = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r)
      parents.set(r, _mm512_permutexvar_epi32(last_digit_first, targets[r]),
                  _mm512_permutexvar_epi32(last_digit_first, bases[r]));
  } else if constexpr (B == 3) {  // Parent k of node q is node (q & 3) << 3 | k.
    const Ints first = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const Ints second = _mm512_add_epi32(first, all(4));
    parents.set(0, _mm512_permutex2var_epi32(targets[0], first, targets[1]),
                _mm512_permutex2var_epi32(bases[0], first, bases[1]));
    parents.set(1, _mm512_permutex2var_epi32(targets[0], second, targets[1]),
                _mm512_permutex2var_epi32(bases[0], second, bases[1]));
  } else if constexpr (B == 5) {  // A vector holds branches from two parents.
    const Ints half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
#pragma GCC unroll 4
    for (int two = 0; two < 4; ++two) {
      const Ints of_two = _mm512_or_si512(half, all(static_cast<std::uint32_t>(2 * two)));
      parents.set(two, _mm512_permutexvar_epi32(of_two, targets[0]),
                  _mm512_permutexvar_epi32(of_two, bases[0]));
    }
  } else if constexpr (B == 6) {  // A vector holds branches from all four parents.
    const Ints quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    parents.set(0, _mm512_permutexvar_epi32(quarter, targets[0]),
                _mm512_permutexvar_epi32(quarter, bases[0]));
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) parents.set(r, targets[r], bases[r]);
  }
}

// Computes best[r], the costs of the cheapest branches to the nodes of register r in the next phase.
template <int B, int kPhase>
[[gnu::always_inline]] inline void find_best(const Parents<B>& parents, const Tables<B>& tables, Ints* best) {
  constexpr int kNext = (kPhase + 1) % Layout<B>::kPhases;
  const auto& levels = tables.levels[kNext];
  if constexpr (B == 1) {
#pragma GCC unroll 4
    for (int two = 0; two < 4; ++two) {
      const Ints t0 = load(parents.target[2 * two]), t1 = load(parents.target[2 * two + 1]);
      const Ints c0 = load(parents.base[2 * two]), c1 = load(parents.base[2 * two + 1]);
      for (int r = two; r < 8; r += 4)
        best[r] = lesser(branch(t0, c0, levels[r][0]), branch(t1, c1, levels[r][1]));
    }
  } else if constexpr (B == 2) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      Ints of[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        of[k] = kPhase == 2 ? branch(load(parents.target[k]), load(parents.base[k]), levels[r][k])
                            : branch(four_times(parents.target[r] + 4 * k),
                                     four_times(parents.base[r] + 4 * k), levels[r][k]);
      best[r] = lesser(lesser(of[0], of[1]), lesser(of[2], of[3]));
    }
  } else if constexpr (B == 3) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const Ints target = four_times(parents.target[k / 4] + k % 4 * 4),
                 base = four_times(parents.base[k / 4] + k % 4 * 4);
      for (int r = 0; r < 2; ++r) {
        const Ints of_k = branch(target, base, levels[r][k]);
        best[r] = k == 0 ? of_k : lesser(best[r], of_k);
      }
    }
  } else if constexpr (B == 4) {  // All nodes have the same parents.
    Ints chains[4];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      const Ints of_k =
          branch(everywhere(parents.target[0] + k), everywhere(parents.base[0] + k), levels[0][k]);
      chains[k % 4] = k < 4 ? of_k : lesser(chains[k % 4], of_k);
    }
    best[0] = lesser(lesser(chains[0], chains[1]), lesser(chains[2], chains[3]));
  } else if constexpr (B == 5) {  // 4 states lead from a parent to a node.
    Ints of_state[4];
#pragma GCC unroll 4
    for (int two = 0; two < 4; ++two) {
      const Ints target = load(parents.target[two]), base = load(parents.base[two]);
#pragma GCC unroll 4
      for (int state = 0; state < 4; ++state) {
        const Ints of_two = branch(target, base, levels[0][state * 4 + two]);
        of_state[state] = two == 0 ? of_two : lesser(of_state[state], of_two);
      }
    }
    for (std::uint32_t state = 1; state < 4; ++state)
      of_state[state] = _mm512_or_si512(of_state[state], all(state << 3));
    best[0] = lesser(lesser(of_state[0], of_state[1]), lesser(of_state[2], of_state[3]));
    best[0] = lesser(best[0], _mm512_shuffle_i64x2(best[0], best[0], 0x4e));
  } else {  // 16 states lead from a parent to a node.
    const Ints target = load(parents.target[0]), base = load(parents.base[0]);
    Ints chains[4];
#pragma GCC unroll 16
    for (std::uint32_t state = 0; state < 16; ++state) {
      const Ints of_state = branch(target, _mm512_or_si512(base, all(state << 2)), levels[0][state]);
      chains[state % 4] = state < 4 ? of_state : lesser(chains[state % 4], of_state);
    }
    best[0] = lesser(lesser(chains[0], chains[1]), lesser(chains[2], chains[3]));
    best[0] = lesser(best[0], _mm512_shuffle_i32x4(best[0], best[0], 0x4e));
    best[0] = lesser(best[0], _mm512_shuffle_i32x4(best[0], best[0], 0xb1));
  }
}

// Returns the levels of the best branches to register r, in both halves of every lane.
template <int B>
[[gnu::always_inline]] inline Ints levels_of(Ints best, const Tables<B>& tables, int phase, int r,
                                             const Constants& constants) {
  if constexpr (B == 3) {
    // The lowest byte of a lane becomes the upper byte of each half, and then the index of a level.
    const Ints lanes = _mm512_set4_epi32(0x0c800c80, 0x08800880, 0x04800480, 0x00800080);
    const Ints at = masked_or(_mm512_shuffle_epi8(best, lanes), all(3 * 0x01000100U), lanes);
    const Ints level = _mm512_mask_blend_epi32(_mm512_test_epi32_mask(best, all(4)),
                                               _mm512_shuffle_epi8(load(tables.fours[phase][r][0]), at),
                                               _mm512_shuffle_epi8(load(tables.fours[phase][r][1]), at));
    return _mm512_srav_epi16(level, load(constants.level_shift_of_words));
  } else {
    // The code from `node` to `level` computes state_level() in the highest bytes of the lanes.
    const Ints node = _mm512_slli_epi32(load(tables.nodes[phase] + r * kLanes), 24 + B);
    const Ints state = masked_or(_mm512_slli_epi32(best, 24), all(Layout<B>::kChoice << 24), node);
    const Ints mixed = _mm512_xor_si512(state, _mm512_sllv_epi32(state, load(constants.mix)));
    const Ints folded = _mm512_ternarylogic_epi32(
        load(constants.fold_mask), _mm512_sllv_epi32(state, load(constants.fold)), mixed, 0xca);
    const Ints sum = _mm512_add_epi32(_mm512_srai_epi32(mixed, 1), _mm512_srai_epi32(folded, 1));
    const Ints level = _mm512_srav_epi32(sum, load(constants.level_shift));
    return _mm512_or_si512(level, _mm512_srli_epi32(level, 16));
  }
}

// Writes the choices of the best branches to the trace and computes their errors, in both halves of every
// lane.
template <int B>
[[gnu::always_inline]] inline void take_errors(const Ints* best, const Tables<B>& tables, int phase,
                                               const Step& step, std::uint8_t* trace, Ints* errors) {
  using L = Layout<B>;
  const Constants& constants = step.constants;
  if constexpr (B < 3) {
#pragma GCC unroll 2
    for (int r = 0; r < L::kRegisters; r += 4) {
      Ints choices[4];
      for (int i = 0; i < 4; ++i) choices[i] = _mm512_and_si512(best[r + i], all(L::kChoice));
      const Ints packed = _mm512_packus_epi16(_mm512_packus_epi32(choices[0], choices[1]),
                                              _mm512_packus_epi32(choices[2], choices[3]));
      _mm512_storeu_si512(trace + r * kLanes, packed);
      const auto levels = [&](int k) { return load(tables.by_choice[phase][k] + r * kLanes); };
      const __mmask64 odd = _mm512_test_epi8_mask(packed, _mm512_set1_epi8(1));
      Ints level = _mm512_mask_blend_epi8(odd, levels(0), levels(1));
      if constexpr (B == 2)
        level = _mm512_mask_blend_epi8(_mm512_test_epi8_mask(packed, _mm512_set1_epi8(2)), level,
                                       _mm512_mask_blend_epi8(odd, levels(2), levels(3)));
      const Ints upper_bytes[2] = {_mm512_unpacklo_epi8(_mm512_setzero_si512(), level),
                                   _mm512_unpackhi_epi8(_mm512_setzero_si512(), level)};
#pragma GCC unroll 2
      for (int two = 0; two < 2; ++two) {
        const Ints error = _mm512_sub_epi16(
            step.value, _mm512_srav_epi16(upper_bytes[two], load(constants.level_shift_of_words)));
        errors[r + 2 * two] = _mm512_unpacklo_epi16(error, error);
        errors[r + 2 * two + 1] = _mm512_unpackhi_epi16(error, error);
      }
    }
  } else {
#pragma GCC unroll 2
    for (int r = 0; r < L::kRegisters; ++r) {
      _mm_store_si128(reinterpret_cast<__m128i*>(trace + r * kLanes), _mm512_cvtepi32_epi8(best[r]));
      errors[r] = _mm512_sub_epi16(step.value, levels_of<B>(best[r], tables, phase, r, constants));
    }
  }
}

// Selects the sums of the parents from which the best branches to register r come.
template <int B, int kPhase>
struct Choice {
  Ints parents;
  __mmask16 odd, upper;

  [[gnu::always_inline]] explicit Choice(Ints best) {
    const Ints lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if constexpr (B == 1) {
      parents = masked_or(best, all(1), _mm512_slli_epi32(lane, 1));
    } else if constexpr (B == 2 && kPhase == 2) {
      odd = _mm512_test_epi32_mask(best, all(1));
      upper = _mm512_test_epi32_mask(best, all(2));
    } else if constexpr (B == 2) {
      parents = masked_or(best, all(3), _mm512_slli_epi32(_mm512_and_si512(lane, all(3)), 2));
    } else if constexpr (B == 3) {
      parents = masked_or(best, all(7), _mm512_slli_epi32(_mm512_and_si512(lane, all(3)), 3));
    } else if constexpr (B == 4) {
      parents = best;
    } else {
      parents = _mm512_and_si512(best, all(Layout<B>::kNodes - 1));
    }
  }
  [[gnu::always_inline]] Ints sums(const std::int32_t* along, int r) const {
    if constexpr (B == 1) {
      const std::int32_t* both = along + r % 4 * 2 * kLanes;
      return _mm512_permutex2var_epi32(load(both), parents, load(both + kLanes));
    } else if constexpr (B == 2 && kPhase == 2) {
      const Ints lower = _mm512_mask_blend_epi32(odd, load(along), load(along + kLanes));
      return _mm512_mask_blend_epi32(
          upper, lower, _mm512_mask_blend_epi32(odd, load(along + 2 * kLanes), load(along + 3 * kLanes)));
    } else if constexpr (B == 3) {
      return _mm512_permutex2var_epi32(load(along), parents, load(along + kLanes));
    } else {
      return _mm512_permutexvar_epi32(parents, load(along + r * kLanes));
    }
  }
};

template <int B>
[[gnu::always_inline]] inline void settle(const ShapedStep& step, Ints* costs) {
  using L = Layout<B>;
  Ints low = costs[0];
  for (int r = 1; r < L::kRegisters; ++r) low = lesser(low, costs[r]);
  const Ints least = all(_mm512_reduce_min_epu32(low) & ~L::kChoice);
  const Ints limit = everywhere(&step.limit);
  const __m512 fade = _mm512_castsi512_ps(everywhere(&step.fade));
#pragma GCC unroll 8
  for (int r = 0; r < L::kRegisters; ++r) {
    const Ints cost = lesser(_mm512_sub_epi32(costs[r], least), limit);
    costs[r] = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(cost), fade));
  }
}

// Computes the surviving paths, whose costs are best[r].
template <int B, int kPhase>
[[gnu::always_inline]] inline void survive(const Step& step, const Tables<B>& tables, Ints* best,
                                           const Survivors<B>& before, Survivors<B>& after,
                                           std::uint8_t* trace) {
  using L = Layout<B>;
  constexpr int kNext = (kPhase + 1) % L::kPhases;
  Ints errors[L::kRegisters];
  take_errors<B>(best, tables, kNext, step, trace, errors);
#pragma GCC unroll 8
  for (int r = 0; r < L::kRegisters; ++r) {
    const Choice<B, kPhase> choice(best[r]);
#pragma GCC unroll 4
    for (int k = 0; k < kPairs; ++k)
      store(after.along[k] + r * kLanes,
            _mm512_add_epi16(choice.sums(before.along[k], r),
                             _mm512_mulhrs_epi16(everywhere(step.numbers.directions + 2 * k), errors[r])));
  }
  if (step.numbers.settles) settle<B>(step.numbers, best);
#pragma GCC unroll 8
  for (int r = 0; r < L::kRegisters; ++r)
    store(after.cost + r * kLanes,
          masked_or(best[r], all(~L::kChoice), load(tables.choices[kNext] + r * kLanes)));
}

template <int B>
void bar_other_seams(const Tables<B>& tables, int i, int seam, Survivors<B>& paths) {
  using L = Layout<B>;
  const int left = L::kMemory - i * B;
  const Ints known = all((1U << (left < B ? left : B)) - 1),
             expected = all(static_cast<std::uint32_t>(seam >> (i * B)));
  for (int r = 0; r < L::kRegisters; ++r) {
    const Ints node = load(tables.nodes[i % L::kPhases] + r * kLanes), cost = load(paths.cost + r * kLanes);
    const __mmask16 others = _mm512_test_epi32_mask(_mm512_xor_si512(node, expected), known);
    store(paths.cost + r * kLanes, _mm512_mask_or_epi32(cost, others, cost, all(kBarred)));
  }
}

#include "format/shaped_rows_body.h"

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
