// Holds the rotations of rotary position embedding as a table, which can apply and undo them. Gradients on
// the CPU need both.
#pragma once

#include <vector>

#include "model/model_parts.h"

namespace kvant {

// RopeTable is the table of one layer, for positions [0, n_rows). RoPE is a linear map of each pair of
// channels. For a position and pair, the table has numbers c and s, and the channels (a, b) become (a c - b
// s, a s + b c). c^2 + s^2 is 1, or the square of YaRN's magnitude.
class RopeTable {
 public:
  RopeTable(const ModelParts& model, int layer, int n_rows, int n_threads);

  // Rotates the values [head_dim] of one head at position `row`, in place.
  void turn(int row, float* x) const;
  // Applies the transposed map, which turns derivatives by turn()'s output into derivatives by its input.
  void turn_back(int row, float* gradient) const;

 private:
  template <bool back>
  void apply(int row, float* x) const;

  int n_pairs_;
  int first_stride_, second_offset_;    // pair i has channel i * first_stride_ and the channel second_offset_
                                        // after it
  std::vector<float> cosines_, sines_;  // [n_rows, n_pairs]
};

}  // namespace kvant
