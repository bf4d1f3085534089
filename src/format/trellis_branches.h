// The cost of each branch of a trellis: its squared error in 16 bits, looked up by the value.
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
  // Returns blocks of costs, one for each bin of values.
  ViterbiBranches costs() const { return {bits_, forward_.data(), backward_.data()}; }

  // Computes bins[i], the bin of values[i]; the outermost bins are unbounded.
  void find_bins(const float* values, int n, std::uint16_t* bins) const;

  // Computes symbols[i], which a value in bins[i] appends on its way from nodes[i] to nodes[i + 1].
  void find_symbols(const std::uint16_t* bins, const std::uint8_t* nodes, int n,
                    std::uint16_t* symbols) const;

 private:
  void add_bin(double value, const TrellisTable& table);

  int bits_;
  int last_bin_;
  float bins_per_unit_;
  std::vector<std::uint16_t> forward_;
  std::vector<std::uint16_t> backward_;
  std::vector<std::uint8_t> symbols_;  // B > 4: symbols of the cheapest states, [bins][G to][G from]
};

}  // namespace kvant
