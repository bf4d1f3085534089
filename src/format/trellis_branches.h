// TrellisBranches holds the squared error of every branch of a trellis as a 16-bit cost, looked up by the
// value's bin. TrellisEncoder searches with these costs, so its inner loop needs no floating point.
#pragma once

#include <cstdint>
#include <vector>

#include "format/trellis.h"
#include "format/trellis_viterbi.h"

namespace kvant {

// trellis_viterbi.h explains nodes, parents and branches.
class TrellisBranches {
 public:
  explicit TrellisBranches(const TrellisTable& table);

  int bits() const { return bits_; }
  int nodes() const { return kTrellisStates >> bits_; }
  int parents() const { return bits_ < 4 ? 1 << bits_ : nodes(); }
  // Returns blocks of costs, one block for each bin of values.
  ViterbiBranches costs() const { return {bits_, forward_.data(), backward_.data()}; }

  // Computes bins[i], the bin of values[i]. The outermost bins are unbounded.
  void find_bins(const float* values, int n, std::uint16_t* bins) const;

  // Computes symbols[i], the B bits that a value in bins[i] appends on the path from nodes[i] to nodes[i +
  // 1].
  void find_symbols(const std::uint16_t* bins, const std::uint8_t* nodes, int n,
                    std::uint16_t* symbols) const;

 private:
  void add_bin(double value, const TrellisTable& table);

  int bits_;
  int last_bin_;
  float bins_per_unit_;
  std::vector<std::uint16_t> forward_;
  std::vector<std::uint16_t> backward_;
  std::vector<std::uint8_t> symbols_;  // [bins][G to][G from], symbols of the cheapest states, for B > 4
};

}  // namespace kvant
