// Defines the loop over rows for the search of shaped_search.h, which all instruction sets share. One file
// for each instruction set includes this file in its own namespace, after shaped_vectors_body.h and these
// definitions:
//   Constants(code)                   the numbers that all rows share
//   Step(step, constants, value)      the numbers that all registers share in one step of a row
//   Parents<B>                        the targets and the bases of parents
//   arrange_parents<B, kPhase>(paths, step, parents)   computes `parents`
//   find_best<B, kPhase>(parents, tables, best)        computes the costs of the cheapest branches
//   survive<B, kPhase>(step, tables, best, before, after, trace)   computes the surviving paths
//   bar_other_seams(tables, i, seam, paths)            bars the paths that do not begin in the seam

// Searches kRows rows side by side, so the steps of one row do not wait for the steps of another row.
template <int B, int kRows>
class Search {
 public:
  using L = Layout<B>;

  Search(const ShapedCode& code, const Constants& constants, const Tables<B>& tables, const ShapedRow* rows,
         std::uint8_t* trace)
      : code_(code), constants_(constants), tables_(tables), rows_(rows), trace_(trace) {
    for (int row = 0; row < kRows; ++row) {
      paths_[0][row] = {};
      for (int r = 0; r < L::kRegisters; ++r)
        store(paths_[0][row].cost + r * kLanes, load(tables.choices[0] + r * kLanes));
    }
  }

  void run() {
    for (int i = 0; i < code_.n;) {
      step<0>(i++);
      if constexpr (L::kPhases == 3) {
        if (i < code_.n) step<1>(i++);
        if (i < code_.n) step<2>(i++);
      }
    }
    trace_back();
  }

 private:
  template <int kPhase>
  [[gnu::always_inline]] void step(int i) {
    Survivors<B>* before = paths_[i % 2];
    Survivors<B>* after = paths_[(i + 1) % 2];
    if (i * B < L::kMemory)
      for (int row = 0; row < kRows; ++row) bar_other_seams(tables_, i, rows_[row].seam, before[row]);
    Parents<B> parents[kRows];
    Ints best[kRows][L::kRegisters];
#pragma GCC unroll 1
    for (int row = 0; row < kRows; ++row)
      arrange_parents<B, kPhase>(before[row], Step(code_.steps[i], constants_, rows_[row].values[i]),
                                 parents[row]);
#pragma GCC unroll 1
    for (int row = 0; row < kRows; ++row) find_best<B, kPhase>(parents[row], tables_, best[row]);
#pragma GCC unroll 1
    for (int row = 0; row < kRows; ++row)
      survive<B, kPhase>(Step(code_.steps[i], constants_, rows_[row].values[i]), tables_, best[row],
                         before[row], after[row], trace_of(i, row));
  }

  void trace_back() {
    int nodes[kRows];
    for (int row = 0; row < kRows; ++row) nodes[row] = rows_[row].seam;
    for (int i = code_.n - 1; i >= 0; --i) {
      const std::uint8_t* places = tables_.places[(i + 1) % L::kPhases];
      for (int row = 0; row < kRows; ++row) {
        const unsigned int choice = trace_of(i, row)[places[nodes[row]]] & L::kChoice;
        const int state = nodes[row] << B | static_cast<int>(choice);
        rows_[row].states[i] = static_cast<std::uint8_t>(state);
        nodes[row] = state & (L::kNodes - 1);
      }
    }
  }

  std::uint8_t* trace_of(int i, int row) const {
    return trace_ + (static_cast<std::ptrdiff_t>(i) * kRows + row) * L::kStride;
  }

  const ShapedCode& code_;
  const Constants& constants_;
  const Tables<B>& tables_;
  const ShapedRow* rows_;
  std::uint8_t* trace_;  // [n][kRows][kStride], the lowest bytes of the best costs
  Survivors<B> paths_[2][kRows];
};

template <int B>
void search_all(const ShapedCode& code, const ShapedRow* rows, int n_rows, std::uint8_t* trace) {
  constexpr int kRows = Layout<B>::kRows;
  static_assert(kRows * Layout<B>::kStride <= kShapedTrace);
  const Constants constants(code);
  const Tables<B> tables(code);
  int row = 0;
  for (; row + kRows <= n_rows; row += kRows)
    Search<B, kRows>(code, constants, tables, rows + row, trace).run();
  for (; row < n_rows; ++row) Search<B, 1>(code, constants, tables, rows + row, trace).run();
}

void search(const ShapedCode& code, const ShapedRow* rows, int n_rows, std::uint8_t* trace) {
  switch (code.trellis->bits) {
    case 1:
      return search_all<1>(code, rows, n_rows, trace);
    case 2:
      return search_all<2>(code, rows, n_rows, trace);
    case 3:
      return search_all<3>(code, rows, n_rows, trace);
    case 4:
      return search_all<4>(code, rows, n_rows, trace);
    case 5:
      return search_all<5>(code, rows, n_rows, trace);
    default:
      return search_all<6>(code, rows, n_rows, trace);
  }
}
