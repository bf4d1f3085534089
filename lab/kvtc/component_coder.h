// Codes the principal components of a token as KVTC does (arXiv 2511.01815). Neighbouring components form a
// group with its own shift and scale in f16, and with 2, 4 or 8 bits per value. An entropy coder follows, but
// the code computes only the coder's ideal size.
//
// With 2 and 4 bits, values become integers. The shift is the group's smallest value, and the scale is the
// group's range divided by 2^bits - 1. With 8 bits, values become E4M3, as in the paper. The shift is the
// middle of the group's range, and the scale is half of the range divided by 448.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

struct ComponentGroup {
  int size = 0;  // components
  // Each value has 2, 4 or 8 bits. Components with 0 bits become zero and have no parameters.
  int bits = 0;
};

// Parses groups such as "2x8 64x4 256x2". Each group is written as its size times its bits, in the order of
// components. Returns an error for any other text.
Result<std::vector<ComponentGroup>> parse_component_groups(const std::string& text);

// Counts how often each symbol of one component or parameter occurs.
class SymbolCounts {
 public:
  explicit SymbolCounts(int n_symbols) : counts_(n_symbols) {}
  void add(unsigned symbol) { ++counts_[symbol]; }
  // Returns the bits of all symbols under an ideal entropy coder. The coder knows how often each symbol
  // occurs, but nothing about neighbouring symbols.
  double ideal_bits() const;

 private:
  std::vector<std::int64_t> counts_;
};

class ComponentCoder {
 public:
  explicit ComponentCoder(std::vector<ComponentGroup> groups);

  int n_components() const { return n_components_; }
  // Returns the bits of a token before entropy coding, including parameters.
  int plain_bits() const { return plain_bits_; }

  // Replaces x [n_components] by the result of coding and decoding, and counts the symbols. All values must
  // be finite.
  void code(float* x);
  // Returns the ideal bits of all symbols so far. Each component, and each byte of a parameter, has its own
  // coder.
  double ideal_bits() const;

 private:
  struct Parameters {
    float shift, scale;
  };
  // Returns the parameters rounded to f16.
  Parameters parameters_of(const float* x, const ComponentGroup& group) const;
  void count_parameter(int group, int which, std::uint16_t value);

  std::vector<ComponentGroup> groups_;
  int n_components_ = 0, plain_bits_ = 0;
  std::vector<SymbolCounts> values_;                     // [n_components]
  std::vector<std::array<SymbolCounts, 4>> parameters_;  // [groups], bytes of shift and scale
};

}  // namespace kvant
