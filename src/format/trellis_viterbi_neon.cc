// Implements the Viterbi search in NEON. A row's costs stay in registers, 8 nodes in each.
#include "format/trellis_viterbi.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstddef>

namespace kvant {
namespace {

using Words = uint16x8_t;
constexpr int kLanes = 8;  // costs in a register

Words load(const std::uint16_t* from) {
  return vld1q_u16(from);
}
void store(std::uint16_t* to, Words x) {
  vst1q_u16(to, x);
}
Words plus(Words a, Words b) {
  return vqaddq_u16(a, b);
}
Words lesser(Words a, Words b) {
  return vminq_u16(a, b);
}

#include "format/trellis_nodes_body.h"

// Node q's parents are 2q and 2q + 1, so the function separates the even nodes from the odd nodes.
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<1>& nodes) {
  Words parents[2][8];
#pragma GCC unroll 8
  for (int m = 0; m < 8; ++m) {
    parents[0][m] = vuzp1q_u16(nodes.least[2 * m], nodes.least[2 * m + 1]);
    parents[1][m] = vuzp2q_u16(nodes.least[2 * m], nodes.least[2 * m + 1]);
  }
  add_and_reduce(parents, costs, nodes);
}

// Makes parents[k] = nodes k, k + 4, ..., k + 60.
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<2>& nodes) {
  Words parents[4][2];
#pragma GCC unroll 2
  for (int m = 0; m < 2; ++m) {
    const Words* from = nodes.least + 4 * m;
    const Words even[2] = {vuzp1q_u16(from[0], from[1]), vuzp1q_u16(from[2], from[3])};
    const Words odd[2] = {vuzp2q_u16(from[0], from[1]), vuzp2q_u16(from[2], from[3])};
    parents[0][m] = vuzp1q_u16(even[0], even[1]);
    parents[1][m] = vuzp1q_u16(odd[0], odd[1]);
    parents[2][m] = vuzp2q_u16(even[0], even[1]);
    parents[3][m] = vuzp2q_u16(odd[0], odd[1]);
  }
  add_and_reduce(parents, costs, nodes);
}

// Makes parents[k] = nodes k, k + 8, k + 16, k + 24, repeated twice, which is a transposition of [4][8].
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<3>& nodes) {
  const Words* from = nodes.least;
  const Words ab[2] = {vzip1q_u16(from[0], from[1]), vzip2q_u16(from[0], from[1])};
  const Words cd[2] = {vzip1q_u16(from[2], from[3]), vzip2q_u16(from[2], from[3])};
  Words parents[8][1];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const uint32x4_t first = vreinterpretq_u32_u16(ab[half]), second = vreinterpretq_u32_u16(cd[half]);
    const uint64x2_t two[2] = {vreinterpretq_u64_u32(vzip1q_u32(first, second)),
                               vreinterpretq_u64_u32(vzip2q_u32(first, second))};
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      parents[4 * half + 2 * i][0] = vreinterpretq_u16_u64(vdupq_laneq_u64(two[i], 0));
      parents[4 * half + 2 * i + 1][0] = vreinterpretq_u16_u64(vdupq_laneq_u64(two[i], 1));
    }
  }
  add_and_reduce(parents, costs, nodes);
}

// Fills a register with cost k of eight.
template <int K>
Words filled(Words eight) {
  return vdupq_laneq_u16(eight, K);
}

// Adds costs of parents K and K + 1 to K + 7, which `eight` holds, and keeps the least.
template <int Registers>
[[gnu::always_inline]] inline void reduce_eight(Words eight, const std::uint16_t* costs,
                                                Words (&low)[Registers]) {
  const Words parents[8] = {filled<0>(eight), filled<1>(eight), filled<2>(eight), filled<3>(eight),
                            filled<4>(eight), filled<5>(eight), filled<6>(eight), filled<7>(eight)};
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
#pragma GCC unroll 2
    for (int r = 0; r < Registers; ++r)
      low[r] = lesser(low[r], plus(parents[k], load(costs + (k * Registers + r) * kLanes)));
  }
}

// Parent k of every node is node k.
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<4>& nodes) {
  Words low[2] = {vdupq_n_u16(0xffff), vdupq_n_u16(0xffff)};
  reduce_eight(nodes.least[0], costs, low);
  reduce_eight(nodes.least[1], costs + 8 * 2 * kLanes, low);
  nodes = {{low[0], low[1]}};
}

[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<5>& nodes) {
  Words low[1] = {vdupq_n_u16(0xffff)};
  reduce_eight(nodes.least[0], costs, low);
  nodes.least[0] = low[0];
}

// There are 4 nodes, held twice, so a register holds two parents of each node.
[[gnu::always_inline]] inline void step(const std::uint16_t* costs, Nodes<6>& nodes) {
  const Words twice = vzip1q_u16(nodes.least[0], nodes.least[0]);
  const uint32x4_t four_times = vreinterpretq_u32_u16(twice);
  const Words low =
      lesser(plus(vreinterpretq_u16_u32(vzip1q_u32(four_times, four_times)), load(costs)),
             plus(vreinterpretq_u16_u32(vzip2q_u32(four_times, four_times)), load(costs + kLanes)));
  nodes.least[0] = lesser(low, vextq_u16(low, low, 4));
}

template <int B>
void subtract_the_least(Nodes<B>& nodes) {
  Words low = nodes.least[0];
  for (int r = 1; r < Nodes<B>::kRegisters; ++r) low = lesser(low, nodes.least[r]);
  const Words floor = vdupq_n_u16(vminvq_u16(low));
  for (Words& least : nodes.least) least = vsubq_u16(least, floor);
}

// Loads the costs of all nodes into the layout of Nodes<B>.
template <int B>
Nodes<B> first_nodes(const std::uint16_t* least) {
  Nodes<B> nodes;
  for (int r = 0; r < Nodes<B>::kRegisters; ++r) nodes.least[r] = load(least + kLanes * r);
  if constexpr (B == 6)
    nodes.least[0] = vcombine_u16(vget_low_u16(nodes.least[0]), vget_low_u16(nodes.least[0]));
  return nodes;
}

// Returns the index of the first lane of `sums` that equals `least`. The lane must exist.
int lane_of(Words sums, std::uint16_t least) {
  const uint8x8_t equal = vmovn_u16(vceqq_u16(sums, vdupq_n_u16(least)));
  return __builtin_ctzll(vget_lane_u64(vreinterpret_u64_u8(equal), 0)) / 8;
}

// Returns the index of the least of P sums.
template <int P>
int number_of_least(const std::uint16_t* a, const std::uint16_t* b) {
  if constexpr (P <= 4) {
    int best = 0, low = 0xffff;
    for (int k = 0; k < P; ++k) {
      const int sum = a[k] + b[k];
      best = sum < low ? k : best;
      low = sum < low ? sum : low;
    }
    return best;
  } else if constexpr (P == 8) {
    const Words sums = plus(load(a), load(b));
    return lane_of(sums, vminvq_u16(sums));
  } else {
    const Words low = plus(load(a), load(b)), high = plus(load(a + 8), load(b + 8));
    const std::uint16_t least_low = vminvq_u16(low), least_high = vminvq_u16(high);
    return least_low <= least_high ? lane_of(low, least_low) : 8 + lane_of(high, least_high);
  }
}

#include "format/trellis_viterbi_body.h"

}  // namespace

const ViterbiKernel* neon_viterbi() {
  static constexpr ViterbiKernel kKernel = {"neon", forward_of_bits, trace_of_bits};
  return &kKernel;
}

}  // namespace kvant

#else

namespace kvant {

const ViterbiKernel* neon_viterbi() {
  return nullptr;
}

}  // namespace kvant

#endif
