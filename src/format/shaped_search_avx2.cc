// Implements the search of shaped_search.h in AVX2. The code handles 8 branches at a time, in 32-bit lanes.
// shaped_search_avx512.cc explains the method.
#include "format/shaped_search.h"

#if defined(__AVX2__)
#include <immintrin.h>

#include <cstddef>

namespace kvant {
namespace {

constexpr int kLanes = 8;

using Ints = __m256i;

[[gnu::always_inline]] inline Ints all(std::uint32_t x) {
  return _mm256_set1_epi32(static_cast<int>(x));
}
[[gnu::always_inline]] inline Ints load(const void* from) {
  return _mm256_load_si256(static_cast<const __m256i*>(from));
}
[[gnu::always_inline]] inline void store(void* to, Ints x) {
  _mm256_store_si256(static_cast<__m256i*>(to), x);
}
// everywhere() broadcasts one number to every lane, and twice() broadcasts four numbers to both halves. Both
// functions load from memory, for the reason in shaped_search_avx512.cc.
[[gnu::always_inline]] inline Ints everywhere(const void* one) {
  Ints x;
  asm("vpbroadcastd %1, %0" : "=x"(x) : "m"(*static_cast<const char(*)[4]>(one)));
  return x;
}
[[gnu::always_inline]] inline Ints twice(const void* four) {
  Ints x;
  asm("vbroadcasti128 %1, %0" : "=x"(x) : "m"(*static_cast<const char(*)[16]>(four)));
  return x;
}
[[gnu::always_inline]] inline Ints lesser(Ints a, Ints b) {
  return _mm256_min_epu32(a, b);
}
[[gnu::always_inline]] inline Ints plus(Ints a, Ints b) {
  return _mm256_add_epi32(a, b);
}
// Returns (x & mask) | y.
[[gnu::always_inline]] inline Ints masked_or(Ints x, Ints mask, Ints y) {
  return _mm256_or_si256(_mm256_and_si256(x, mask), y);
}

#include "format/shaped_vectors_body.h"

template <int B>
struct Layout : VectorLayout<B> {
  static constexpr int kRows = B <= 2 ? 2 : 4;

  // With 2 bits a node is three digits of base 4, whose places change from phase to phase as in
  // shaped_search_avx512.cc. One digit selects the lane within a half. Another digit selects the half and the
  // register of a pair. The third digit selects the pair of registers.
  static int node_at(int phase, int r, int lane) {
    if constexpr (B == 2) {
      const int in_half = lane % 4, half = lane / 4 * 2 | r % 2, pair = r / 2;
      return phase == 0   ? 16 * pair + 4 * half + in_half
             : phase == 1 ? 16 * in_half + 4 * pair + half
                          : 16 * half + 4 * in_half + pair;
    } else {
      return (r * kLanes + lane) % VectorLayout<B>::kNodes;
    }
  }
  static int state_at(int next_phase, int r, int v, int lane) {
    const int node = node_at(next_phase, r, lane);
    if constexpr (B <= 5) return node << B | v;
    return node << B | v / 2 << 2 | v % 2 * 2 | lane / 4;
  }
};

struct Constants {
  Lanes half;          // half of the step to which targets are rounded
  Lanes grain;         // mask that rounds targets down, for both halves if a lane has two targets
  Lanes unit;          // level_unit in the upper half of a lane, and in the lower if a lane has two targets
  Lanes level_shift;   // shift of a level in a lane's highest byte
  Lanes level_factor;  // multiplier that extracts the level from the upper byte of both halves
  Lanes mix, fold, fold_mask;  // numbers of TrellisCode for states in the highest byte

  explicit Constants(const ShapedCode& code)
      : half(1 << (kTargetShift + shaped_grain(code.trellis->bits)) >> 1),
        grain(static_cast<int>((0xffffU & ~0U << shaped_grain(code.trellis->bits)) *
                               (code.trellis->bits <= 4 ? 0x10001U : 1U))),
        unit(level_unit(code.level_shift) * (code.trellis->bits <= 4 ? 0x10001 : 0x10000)),
        level_shift(8 - code.level_shift),
        level_factor((1 << (8 + code.level_shift)) * 0x10001),
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
      : numbers(of_step), constants(of_code), value(_mm256_set1_epi16(x)) {
    start = plus(load(constants.half), _mm256_madd_epi16(value, all(1U << kTargetShift)));
  }
};

// Returns the targets of the nodes in register r, times 2^kTargetShift, with Constants::half added.
template <int B>
[[gnu::always_inline]] inline Ints long_targets_of(const Survivors<B>& paths, int r, const Step& step) {
  Ints sum = step.start;
#pragma GCC unroll 4
  for (int k = 0; k < kPairs; ++k)
    sum = plus(
        sum, _mm256_madd_epi16(everywhere(step.numbers.feedback + 2 * k), load(paths.along[k] + r * kLanes)));
  return sum;
}

// Computes the targets of all registers, with level_unit in the upper half of every lane.
template <int B>
[[gnu::always_inline]] inline void find_targets(const Survivors<B>& paths, const Step& step, Ints* targets) {
  constexpr int kRegisters = Layout<B>::kRegisters;
  const Ints grain = load(step.constants.grain), unit = load(step.constants.unit);
  if constexpr (kRegisters == 1) {
    const Ints target = _mm256_srai_epi32(long_targets_of(paths, 0, step), kTargetShift);
    targets[0] = masked_or(
        _mm256_max_epi32(_mm256_min_epi32(target, _mm256_set1_epi32(kReach - 1)), _mm256_set1_epi32(-kReach)),
        grain, unit);
  } else {  // Saturation clamps twice the target to twice the reach.
#pragma GCC unroll 8
    for (int r = 0; r < kRegisters; r += 2) {
      const Ints doubled =
          _mm256_packs_epi32(_mm256_srai_epi32(long_targets_of(paths, r, step), kTargetShift - 1),
                             _mm256_srai_epi32(long_targets_of(paths, r + 1, step), kTargetShift - 1));
      const Ints both = _mm256_and_si256(_mm256_srai_epi16(doubled, 1), grain);
      targets[r] = _mm256_unpacklo_epi16(both, unit);
      targets[r + 1] = _mm256_unpackhi_epi16(both, unit);
    }
  }
}

// Stores the even-numbered of 16 numbers in to[0] and the odd-numbered in to[1].
[[gnu::always_inline]] inline void part_even_from_odd(Ints a, Ints b, std::uint32_t (*to)[kLanes]) {
  const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
  store(to[0], _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)), 0xd8));
  store(to[1], _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)), 0xd8));
}

// Holds four registers after a transposition within each half: of[i] has number i of each register.
struct Four {
  Ints of[4];
};
[[gnu::always_inline]] inline Four transposed(const Ints* x) {
  const Ints ab01 = _mm256_unpacklo_epi32(x[0], x[1]), ab23 = _mm256_unpackhi_epi32(x[0], x[1]);
  const Ints cd01 = _mm256_unpacklo_epi32(x[2], x[3]), cd23 = _mm256_unpackhi_epi32(x[2], x[3]);
  return {{_mm256_unpacklo_epi64(ab01, cd01), _mm256_unpackhi_epi64(ab01, cd01),
           _mm256_unpacklo_epi64(ab23, cd23), _mm256_unpackhi_epi64(ab23, cd23)}};
}

// Holds the targets and the bases of parents, in the order in which their branches are compared.
template <int B>
struct Parents {
  static constexpr int kVectors = B == 6 ? 2 : Layout<B>::kRegisters;
  alignas(32) std::uint32_t target[kVectors][kLanes];
  alignas(32) std::uint32_t base[kVectors][kLanes];
};

template <int B>
[[gnu::always_inline]] inline void arrange(const Ints* numbers, std::uint32_t (*to)[kLanes]) {
  if constexpr (B == 1) {  // The parents of node q are 2q and 2q + 1.
#pragma GCC unroll 8
    for (int two = 0; two < 16; two += 2) part_even_from_odd(numbers[two], numbers[two + 1], to + two);
  } else if constexpr (B == 3) {  // Parent k of node q is (q & 3) << 3 | k, and halves hold k and k + 4.
    const Four by_k = transposed(numbers);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) store(to[k], by_k.of[k]);
  } else if constexpr (B == 6) {  // A vector holds branches from two parents.
    const Ints half = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    store(to[0], _mm256_permutevar8x32_epi32(numbers[0], half));
    store(to[1], _mm256_permutevar8x32_epi32(numbers[0], _mm256_or_si256(half, all(2))));
  } else {
    for (int r = 0; r < Layout<B>::kRegisters; ++r) store(to[r], numbers[r]);
  }
}

template <int B, int /*kPhase*/>
[[gnu::always_inline]] inline void arrange_parents(const Survivors<B>& paths, const Step& step,
                                                   Parents<B>& parents) {
  constexpr int kRegisters = Layout<B>::kRegisters;
  Ints targets[kRegisters], bases[kRegisters];
  find_targets(paths, step, targets);
#pragma GCC unroll 16
  for (int r = 0; r < kRegisters; ++r)
    bases[r] = plus(load(paths.cost + r * kLanes), _mm256_madd_epi16(targets[r], targets[r]));
  arrange<B>(targets, parents.target);
  arrange<B>(bases, parents.base);
}

[[gnu::always_inline]] inline Ints branch(Ints target, Ints base, const std::int32_t* level) {
  return plus(base, _mm256_madd_epi16(target, load(level)));
}

// Computes best[r], the costs of the cheapest branches to the nodes of register r.
template <int B, int kPhase>
[[gnu::always_inline]] inline void find_best(const Parents<B>& parents, const Tables<B>& tables, Ints* best) {
  const auto& levels = tables.levels[(kPhase + 1) % Layout<B>::kPhases];
  if constexpr (B == 1) {
#pragma GCC unroll 8
    for (int two = 0; two < 8; ++two) {
      const Ints t0 = load(parents.target[2 * two]), t1 = load(parents.target[2 * two + 1]);
      const Ints b0 = load(parents.base[2 * two]), b1 = load(parents.base[2 * two + 1]);
      for (int r = two; r < 16; r += 8)
        best[r] = lesser(branch(t0, b0, levels[r][0]), branch(t1, b1, levels[r][1]));
    }
  } else if constexpr (B == 2 && kPhase == 0) {
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      const Ints target = load(parents.target[r]), base = load(parents.base[r]);
      const Ints first =
          lesser(branch(_mm256_shuffle_epi32(target, 0x00), _mm256_shuffle_epi32(base, 0x00), levels[r][0]),
                 branch(_mm256_shuffle_epi32(target, 0x55), _mm256_shuffle_epi32(base, 0x55), levels[r][1]));
      const Ints second =
          lesser(branch(_mm256_shuffle_epi32(target, 0xaa), _mm256_shuffle_epi32(base, 0xaa), levels[r][2]),
                 branch(_mm256_shuffle_epi32(target, 0xff), _mm256_shuffle_epi32(base, 0xff), levels[r][3]));
      best[r] = lesser(first, second);
    }
  } else if constexpr (B == 2) {
#pragma GCC unroll 4
    for (int set = 0; set < (kPhase == 1 ? 4 : 2); ++set) {  // Each set of parents has children of its own.
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        Ints target, base;
        if constexpr (kPhase == 1) {
          target = twice(parents.target[2 * set + k % 2] + k / 2 * 4);
          base = twice(parents.base[2 * set + k % 2] + k / 2 * 4);
        } else {
          target = load(parents.target[2 * k + set]);
          base = load(parents.base[2 * k + set]);
        }
#pragma GCC unroll 4
        for (int child = 0; child < (kPhase == 1 ? 2 : 4); ++child) {
          const int r = kPhase == 1 ? 2 * set + child : 2 * child + set;
          const Ints of_k = branch(target, base, levels[r][k]);
          best[r] = k == 0 ? of_k : lesser(best[r], of_k);
        }
      }
    }
  } else if constexpr (B == 3) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const Ints target = twice(parents.target[k % 4] + k / 4 * 4),
                 base = twice(parents.base[k % 4] + k / 4 * 4);
      for (int r = 0; r < 4; ++r) {
        const Ints of_k = branch(target, base, levels[r][k]);
        best[r] = k == 0 ? of_k : lesser(best[r], of_k);
      }
    }
  } else if constexpr (B == 4) {  // All nodes have the same parents.
    Ints chains[2][2];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      const Ints target = everywhere(parents.target[0] + k), base = everywhere(parents.base[0] + k);
      for (int r = 0; r < 2; ++r) {
        const Ints of_k = branch(target, base, levels[r][k]);
        chains[r][k % 2] = k < 2 ? of_k : lesser(chains[r][k % 2], of_k);
      }
    }
    for (int r = 0; r < 2; ++r) best[r] = lesser(chains[r][0], chains[r][1]);
  } else if constexpr (B == 5) {  // 4 states lead from a parent to a node.
    Ints of_state[4];
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const Ints target = everywhere(parents.target[0] + k), base = everywhere(parents.base[0] + k);
      for (int state = 0; state < 4; ++state) {
        const Ints of_k = branch(target, base, levels[0][state * 8 + k]);
        of_state[state] = k == 0 ? of_k : lesser(of_state[state], of_k);
      }
    }
    for (std::uint32_t state = 1; state < 4; ++state)
      of_state[state] = _mm256_or_si256(of_state[state], all(state << 3));
    best[0] = lesser(lesser(of_state[0], of_state[1]), lesser(of_state[2], of_state[3]));
  } else {  // 16 states lead from a parent to a node.
    const Ints t0 = load(parents.target[0]), t1 = load(parents.target[1]);
    const Ints b0 = load(parents.base[0]), b1 = load(parents.base[1]);
    Ints chains[4];
#pragma GCC unroll 16
    for (std::uint32_t state = 0; state < 16; ++state) {
      const Ints of_state = _mm256_or_si256(
          lesser(branch(t0, b0, levels[0][2 * state]), branch(t1, b1, levels[0][2 * state + 1])),
          all(state << 2));
      chains[state % 4] = state < 4 ? of_state : lesser(chains[state % 4], of_state);
    }
    best[0] = lesser(lesser(chains[0], chains[1]), lesser(chains[2], chains[3]));
    best[0] = lesser(best[0], _mm256_permute4x64_epi64(best[0], 0x4e));
  }
}

// Returns b in lanes where the sign bit of `sign` is set, and a in all other lanes.
[[gnu::always_inline]] inline Ints chosen(__m256 sign, Ints a, Ints b) {
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), sign));
}

// Returns the levels of the best branches to register r, in both halves of every lane.
template <int B>
[[gnu::always_inline]] inline Ints levels_of(Ints best, const Tables<B>& tables, int phase, int r,
                                             const Constants& constants) {
  if constexpr (B == 3) {
    // The lowest byte of a lane becomes the upper byte of each half, and then the index of a level.
    const Ints lanes = _mm256_setr_epi32(0x00800080, 0x04800480, 0x08800880, 0x0c800c80, 0x00800080,
                                         0x04800480, 0x08800880, 0x0c800c80);
    const Ints at = masked_or(_mm256_shuffle_epi8(best, lanes), all(3 * 0x01000100U), lanes);
    const Ints level = chosen(_mm256_castsi256_ps(_mm256_slli_epi32(best, 29)),
                              _mm256_shuffle_epi8(load(tables.fours[phase][r][0]), at),
                              _mm256_shuffle_epi8(load(tables.fours[phase][r][1]), at));
    return _mm256_mulhi_epi16(level, load(constants.level_factor));
  } else {
    // The code from `node` to `level` computes state_level() in the highest bytes of the lanes.
    const Ints node = _mm256_slli_epi32(
        plus(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), all(static_cast<std::uint32_t>(r * kLanes))), 24 + B);
    const Ints state = masked_or(_mm256_slli_epi32(best, 24), all(Layout<B>::kChoice << 24), node);
    const Ints mixed = _mm256_xor_si256(state, _mm256_sllv_epi32(state, load(constants.mix)));
    const Ints mask = load(constants.fold_mask);
    const Ints folded =
        masked_or(_mm256_sllv_epi32(state, load(constants.fold)), mask, _mm256_andnot_si256(mask, mixed));
    const Ints sum = plus(_mm256_srai_epi32(mixed, 1), _mm256_srai_epi32(folded, 1));
    const Ints level = _mm256_srav_epi32(sum, load(constants.level_shift));
    return _mm256_or_si256(level, _mm256_srli_epi32(level, 16));
  }
}

// Stores the lowest byte of each lane of a register.
[[gnu::always_inline]] inline void store_lowest(std::uint8_t* to, Ints x) {
  const Ints four = _mm256_shuffle_epi8(x, all(0x0c080400));
  const __m128i eight = _mm_unpacklo_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), eight);
}

// Writes the choices of the best branches to the trace and computes their errors, in both halves of every
// lane.
template <int B>
[[gnu::always_inline]] inline void take_errors(const Ints* best, const Tables<B>& tables, int phase,
                                               const Step& step, std::uint8_t* trace, Ints* errors) {
  using L = Layout<B>;
  const Constants& constants = step.constants;
  if constexpr (B < 3) {
#pragma GCC unroll 4
    for (int r = 0; r < L::kRegisters; r += 4) {
      Ints choices[4];
      for (int i = 0; i < 4; ++i) choices[i] = _mm256_and_si256(best[r + i], all(L::kChoice));
      const Ints packed = _mm256_packus_epi16(_mm256_packus_epi32(choices[0], choices[1]),
                                              _mm256_packus_epi32(choices[2], choices[3]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(trace + r * kLanes), packed);
      const auto levels = [&](int k) { return load(tables.by_choice[phase][k] + r * kLanes); };
      // The shift moves the lowest bit of each choice into the sign bit of its byte.
      const Ints odd = _mm256_slli_epi16(packed, 7);
      Ints level = _mm256_blendv_epi8(levels(0), levels(1), odd);
      if constexpr (B == 2)
        level = _mm256_blendv_epi8(level, _mm256_blendv_epi8(levels(2), levels(3), odd),
                                   _mm256_slli_epi16(packed, 6));
      const Ints upper_bytes[2] = {_mm256_unpacklo_epi8(_mm256_setzero_si256(), level),
                                   _mm256_unpackhi_epi8(_mm256_setzero_si256(), level)};
#pragma GCC unroll 2
      for (int two = 0; two < 2; ++two) {
        const Ints error =
            _mm256_sub_epi16(step.value, _mm256_mulhi_epi16(upper_bytes[two], load(constants.level_factor)));
        errors[r + 2 * two] = _mm256_unpacklo_epi16(error, error);
        errors[r + 2 * two + 1] = _mm256_unpackhi_epi16(error, error);
      }
    }
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < L::kRegisters; ++r) {
      store_lowest(trace + r * kLanes, best[r]);
      errors[r] = _mm256_sub_epi16(step.value, levels_of<B>(best[r], tables, phase, r, constants));
    }
  }
}

// Selects the sums of the parents from which the best branches to a register come. The search with 3 bits
// transposes registers instead.
template <int B, int kPhase>
struct Choice {
  Ints lane;
  __m256 odd, upper;  // bits of the choice in the sign bits

  [[gnu::always_inline]] explicit Choice(Ints best) {
    const Ints lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    if constexpr (B == 1) {
      lane = masked_or(best, all(1), _mm256_slli_epi32(lanes, 1));
    } else if constexpr (B == 2) {
      lane =
          kPhase == 0 ? best : masked_or(_mm256_slli_epi32(best, 1), all(4), _mm256_and_si256(lanes, all(3)));
      odd = _mm256_castsi256_ps(_mm256_slli_epi32(best, 31));
      upper = _mm256_castsi256_ps(_mm256_slli_epi32(best, 30));
    } else if constexpr (B == 6) {
      lane = _mm256_and_si256(best, all(3));
    } else {
      lane = best;
      if constexpr (B == 4) upper = _mm256_castsi256_ps(_mm256_slli_epi32(best, 28));
    }
  }
  [[gnu::always_inline]] Ints sums(const std::int32_t* along, int r) const {
    const auto of = [&](int parents) {
      return _mm256_permutevar8x32_epi32(load(along + parents * kLanes), lane);
    };
    if constexpr (B == 1) {
      const int first = r % 8 * 2;
      return _mm256_blend_epi32(of(first), of(first + 1), 0xf0);
    } else if constexpr (B == 2 && kPhase == 0) {
      return _mm256_castps_si256(_mm256_permutevar_ps(_mm256_castsi256_ps(load(along + r * kLanes)), lane));
    } else if constexpr (B == 2 && kPhase == 1) {
      const int first = r / 2 * 2;
      return chosen(odd, of(first), of(first + 1));
    } else if constexpr (B == 2) {
      const std::int32_t* first = along + r % 2 * kLanes;
      return chosen(upper, chosen(odd, load(first), load(first + 2 * kLanes)),
                    chosen(odd, load(first + 4 * kLanes), load(first + 6 * kLanes)));
    } else if constexpr (B == 4) {
      return chosen(upper, of(0), of(1));
    } else {
      return of(0);
    }
  }
};

[[gnu::always_inline]] inline Ints least_of_lanes(Ints x) {
  x = lesser(x, _mm256_permute4x64_epi64(x, 0x4e));
  x = lesser(x, _mm256_shuffle_epi32(x, 0x4e));
  return lesser(x, _mm256_shuffle_epi32(x, 0xb1));
}

template <int B>
[[gnu::always_inline]] inline void settle(const ShapedStep& step, Ints* costs) {
  using L = Layout<B>;
  Ints low = costs[0];
  for (int r = 1; r < L::kRegisters; ++r) low = lesser(low, costs[r]);
  const Ints least = _mm256_and_si256(least_of_lanes(low), all(~L::kChoice));
  const Ints limit = everywhere(&step.limit);
  const __m256 fade = _mm256_castsi256_ps(everywhere(&step.fade));
#pragma GCC unroll 16
  for (int r = 0; r < L::kRegisters; ++r) {
    const Ints cost = lesser(_mm256_sub_epi32(costs[r], least), limit);
    costs[r] = _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(cost), fade));
  }
}

// Computes the surviving paths, whose costs are best[r].
template <int B, int kPhase>
[[gnu::always_inline]] inline void survive(const Step& step, const Tables<B>& tables, Ints* best,
                                           const Survivors<B>& before, Survivors<B>& after,
                                           std::uint8_t* trace) {
  using L = Layout<B>;
  constexpr int kNext = (kPhase + 1) % L::kPhases;
  const auto extend = [&](int k, int r, Ints sums, Ints error) {
    const Ints direction = everywhere(step.numbers.directions + 2 * k);
    store(after.along[k] + r * kLanes, _mm256_add_epi16(sums, _mm256_mulhrs_epi16(direction, error)));
  };
  Ints errors[L::kRegisters];
  take_errors<B>(best, tables, kNext, step, trace, errors);
  if constexpr (B != 3) {
#pragma GCC unroll 16
    for (int r = 0; r < L::kRegisters; ++r) {
      const Choice<B, kPhase> choice(best[r]);
#pragma GCC unroll 4
      for (int k = 0; k < kPairs; ++k) extend(k, r, choice.sums(before.along[k], r), errors[r]);
    }
  }
  // With 3 bits, register r holds the parents of the nodes q with q % 4 = r. Transposing brings nodes and
  // parents into the same lanes.
  if constexpr (B == 3) {
    const Four choices = transposed(best);
#pragma GCC unroll 4
    for (int k = 0; k < kPairs; ++k) {
      Ints of_register[4];
      for (int r = 0; r < 4; ++r)
        of_register[r] = _mm256_permutevar8x32_epi32(load(before.along[k] + r * kLanes), choices.of[r]);
      const Four sums = transposed(of_register);
      for (int r = 0; r < 4; ++r) extend(k, r, sums.of[r], errors[r]);
    }
  }
  if (step.numbers.settles) settle<B>(step.numbers, best);
#pragma GCC unroll 16
  for (int r = 0; r < L::kRegisters; ++r)
    store(after.cost + r * kLanes,
          masked_or(best[r], all(~L::kChoice), load(tables.choices[kNext] + r * kLanes)));
}

template <int B>
void bar_other_seams(const Tables<B>& tables, int i, int seam, Survivors<B>& paths) {
  using L = Layout<B>;
  const int left = L::kMemory - i * B;
  const int known = (1 << (left < B ? left : B)) - 1;
  for (int place = 0; place < L::kStride; ++place)
    if (((tables.nodes[i % L::kPhases][place] ^ seam >> (i * B)) & known) != 0) paths.cost[place] |= kBarred;
}

#include "format/shaped_rows_body.h"

}  // namespace

const ShapedKernel* avx2_shaped_search() {
  static constexpr ShapedKernel kKernel = {"avx2", search};
  return &kKernel;
}

}  // namespace kvant

#else

namespace kvant {

const ShapedKernel* avx2_shaped_search() {
  return nullptr;
}

}  // namespace kvant

#endif
