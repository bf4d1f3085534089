// How KVTC (arXiv 2511.01815) codes the principal components of a token: neighbours are a group with a shift
// and a scale of its own, in f16, and 2, 4 or 8 bits a value; an entropy coder comes after it.
//
// Whole numbers: shift is the group's least value, scale its range over 2^bits - 1. 8 bits are E4M3 as
// printed: shift is the middle of the group's range, scale its half over 448.
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
  int bits = 0;  // of a value: 0 (it is zero, and has no parameters), 2, 4 or 8
};

// Groups as text: "2x8 64x4 256x2", sizes and bits in the order of components. An error: it isn't that.
Result<std::vector<ComponentGroup>> parse_component_groups(const std::string& text);

// What the symbols of one component or parameter were.
class SymbolCounts {
 public:
  explicit SymbolCounts(int n_symbols) : counts_(n_symbols) {}
  void add(unsigned symbol) { ++counts_[symbol]; }
  // Bits of all symbols by an ideal entropy coder that knows how often each one comes, whatever stands beside
  // it.
  double ideal_bits() const;

 private:
  std::vector<std::int64_t> counts_;
};

class ComponentCoder {
 public:
  explicit ComponentCoder(std::vector<ComponentGroup> groups);

  int n_components() const { return n_components_; }
  // Of a token before entropy coding, parameters included.
  int plain_bits() const { return plain_bits_; }

  // What decoding gives of x [n_components], in its place. Finite values; counts their symbols.
  void code(float* x);
  // Of all symbols so far, each component and each byte of a parameter by itself.
  double ideal_bits() const;

 private:
  struct Parameters {
    float shift, scale;
  };
  // As f16 has them.
  Parameters parameters_of(const float* x, const ComponentGroup& group) const;
  void count_parameter(int group, int which, std::uint16_t value);

  std::vector<ComponentGroup> groups_;
  int n_components_ = 0, plain_bits_ = 0;
  std::vector<SymbolCounts> values_;                     // [n_components]
  std::vector<std::array<SymbolCounts, 4>> parameters_;  // [groups]: bytes of shift and scale
};

}  // namespace kvant
