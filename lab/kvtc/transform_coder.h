// KVTC (arXiv 2511.01815): a transform coder for K or V of whole tokens, all layers and heads together. A
// token less the mean is turned to the principal directions of a calibration text, whose components
// ComponentCoder codes.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"
#include "base/result.h"
#include "kvtc/component_coder.h"

namespace kvant {

// The principal directions of K or of V, as lab/kvtc/learn-kvtc.py finds them.
struct PrincipalDirections {
  std::vector<float> mean;        // [width]
  std::vector<float> directions;  // [width, width]: orthonormal rows, the largest variance first
};

// A file of F32 numbers: K's mean and directions, then V's. An error: it can't be read, or has another size.
Result<std::array<PrincipalDirections, 2>> read_principal_directions(const std::string& path, int width);

class TransformCoder {
 public:
  // groups: of no more components than there are directions; those behind are left out.
  TransformCoder(const PrincipalDirections& learned, std::vector<ComponentGroup> groups);

  int width() const { return static_cast<int>(learned_.mean.size()); }
  ComponentCoder& components() { return components_; }
  const ComponentCoder& components() const { return components_; }
  // Numbers that decoding needs beside a token's symbols: the mean, and the directions of coded components.
  std::size_t n_constants() const { return learned_.mean.size() * (1 + components_.n_components()); }

  // What decoding gives of rows [n, width], in their place. Threads share the products.
  void code(MatrixView<float> rows, int n_threads);

 private:
  const PrincipalDirections& learned_;
  ComponentCoder components_;
};

}  // namespace kvant
