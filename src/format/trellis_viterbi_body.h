// Runs the Viterbi search over steps of trellis_nodes_body.h. The including file defines for each number of
// bits B
//
//   step(costs, nodes)         advances the nodes by one value
//   first_nodes<B>(least)      loads the costs of all nodes
//   subtract_the_least(nodes)  subtracts the least cost from all costs
//   number_of_least<P>(a, b)   returns the index of the least of P sums a[i] + b[i]
//
// and includes this header inside its namespace.

// Advances kRows rows side by side, so the steps of one row do not wait for the steps of another row.
template <int B, int kRows>
void forward(const ViterbiBranches& branches, int n, const ViterbiRow* rows) {
  using N = Nodes<B>;
  N nodes[kRows];
  for (int row = 0; row < kRows; ++row) nodes[row] = first_nodes<B>(rows[row].least);
  for (int block = 0; block < n; block += kViterbiBlock) {
    for (N& of_row : nodes) subtract_the_least(of_row);
    const int end = block + kViterbiBlock < n ? block + kViterbiBlock : n;
    for (int i = block; i < end; ++i) {
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        step(branches.forward + static_cast<std::size_t>(rows[row].bins[i]) * N::kBranches, nodes[row]);
        std::uint16_t* least = rows[row].least + static_cast<std::size_t>(i + 1) * N::kStride;
        for (int r = 0; r < N::kRegisters; ++r) store(least + kLanes * r, nodes[row].least[r]);
      }
    }
  }
}

template <int B>
int parent_of(const ViterbiBranches& branches, const ViterbiRow& row, int i, int node) {
  using N = Nodes<B>;
  const int first = (node << B) & (N::kCount - 1);
  return first +
         number_of_least<N::kParents>(
             row.least + static_cast<std::size_t>(i) * N::kStride + first,
             branches.backward + static_cast<std::size_t>(row.bins[i]) * N::kBranches + node * N::kParents);
}

template <int B, int kRows>
void trace(const ViterbiBranches& branches, int n, const ViterbiRow* rows) {
  int nodes[kRows];
  for (int row = 0; row < kRows; ++row) nodes[row] = rows[row].nodes[n];
  for (int i = n - 1; i >= 0; --i) {
    bool known = true;
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      nodes[row] = parent_of<B>(branches, rows[row], i, nodes[row]);
      known &= rows[row].nodes[i] == nodes[row];
      rows[row].nodes[i] = static_cast<std::uint8_t>(nodes[row]);
    }
    if (known) return;
  }
}

// Processes four rows at once, and then the remaining rows separately. For few bits per value, the costs of
// four rows do not fit in the registers. Spilling costs to memory still takes less time than waiting for one
// row's steps.
template <int B>
void forward_all(const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows) {
  constexpr int kRows = 4;
  int row = 0;
  for (; row + kRows <= n_rows; row += kRows) forward<B, kRows>(branches, n, rows + row);
  for (; row < n_rows; ++row) forward<B, 1>(branches, n, rows + row);
}
template <int B>
void trace_all(const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows) {
  constexpr int kRows = 4;
  int row = 0;
  for (; row + kRows <= n_rows; row += kRows) trace<B, kRows>(branches, n, rows + row);
  for (; row < n_rows; ++row) trace<B, 1>(branches, n, rows + row);
}

using Pass = void (*)(const ViterbiBranches&, int, const ViterbiRow*, int);
void forward_of_bits(const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows) {
  constexpr Pass kOfBits[] = {nullptr,        forward_all<1>, forward_all<2>, forward_all<3>,
                              forward_all<4>, forward_all<5>, forward_all<6>};
  kOfBits[branches.bits](branches, n, rows, n_rows);
}
void trace_of_bits(const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows) {
  constexpr Pass kOfBits[] = {nullptr,      trace_all<1>, trace_all<2>, trace_all<3>,
                              trace_all<4>, trace_all<5>, trace_all<6>};
  kOfBits[branches.bits](branches, n, rows, n_rows);
}
