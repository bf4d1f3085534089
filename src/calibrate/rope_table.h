// RopeTable: the turns of rotary position embedding, to be applied and to be undone.
#pragma once

#include <vector>

#include "model/model_parts.h"

namespace kvant {

// Of one layer, for positions [0, n_rows). RoPE is a linear map of each pair of channels: with (c, s) of a
// position and pair, (a, b) becomes (a c - b s, a s + b c); c^2 + s^2 is 1 but for YaRN's magnitude.
class RopeTable {
 public:
  RopeTable(const ModelParts& model, int layer, int n_rows, int n_threads);

  // One head's values [head_dim] at position `row`, in place.
  void turn(int row, float* x) const;
  // The transposed map: gradients by what turn() gave become those by what it got.
  void turn_back(int row, float* gradient) const;

 private:
  template <bool back>
  void apply(int row, float* x) const;

  int n_pairs_;
  int first_stride_, second_offset_;    // pair i: channels i * first_stride_ and that + second_offset_
  std::vector<float> cosines_, sines_;  // [n_rows, n_pairs]
};

}  // namespace kvant
