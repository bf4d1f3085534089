// Holds the costs of a row's nodes in registers, for the Viterbi search of any instruction set. The including
// file defines `Words`, a register of kLanes costs, with load(), store(), plus(), which saturates, and
// lesser(). The file includes this header inside its namespace.

// Holds the costs of all nodes with B bits per value in registers. If there are fewer nodes than lanes,
// the register repeats the nodes.
template <int B>
struct Nodes {
  static constexpr int kCount = 256 >> B;
  static constexpr int kParents = kCount < 1 << B ? kCount : 1 << B;
  static constexpr int kBranches = kCount * kParents;
  static constexpr int kRegisters = kCount >= kLanes ? kCount / kLanes : 1;
  static constexpr int kStride = kViterbiStride[B];
  Words least[kRegisters];
};

// Computes least[r], the minimum of parents[k][r % M] + costs[k][r] over all k. Several chains of minima run
// side by side, so additions need not wait for a single chain.
template <int B, int M>
void add_and_reduce(const Words (&parents)[1 << B][M], const std::uint16_t* costs, Nodes<B>& nodes) {
  constexpr int kRegisters = Nodes<B>::kRegisters;
  constexpr int kChains = kRegisters >= 4 ? 1 : 4 / kRegisters;
  Words low[kChains][kRegisters];
#pragma GCC unroll 16
  for (int k = 0; k < 1 << B; ++k) {
#pragma GCC unroll 16
    for (int r = 0; r < kRegisters; ++r) {
      const Words cost = plus(parents[k][r % M], load(costs + k * Nodes<B>::kCount + kLanes * r));
      low[k % kChains][r] = k < kChains ? cost : lesser(low[k % kChains][r], cost);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRegisters; ++r) {
    nodes.least[r] = low[0][r];
    for (int chain = 1; chain < kChains; ++chain) nodes.least[r] = lesser(nodes.least[r], low[chain][r]);
  }
}
