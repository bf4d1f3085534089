// Implements KVTC (arXiv 2511.01815), a transform coder for K or V of whole tokens with all layers and heads
// together. A token minus the mean is projected on the principal directions of a calibration text, and
// ComponentCoder codes the components.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"
#include "base/result.h"
#include "kvtc/component_coder.h"

namespace kvant {

// Holds the principal directions of K or of V, as lab/kvtc/learn-kvtc.py finds them.
struct PrincipalDirections {
  std::vector<float> mean;  // [width]
  // Holds orthonormal rows in the order of falling variance, [width, width].
  std::vector<float> directions;
};

// Reads a file of F32 numbers. The mean and the directions of K come first, then the mean and the directions
// of V. Returns an error if the file cannot be read or has a different size.
Result<std::array<PrincipalDirections, 2>> read_principal_directions(const std::string& path, int width);

class TransformCoder {
 public:
  // `groups` may have at most as many components as there are directions. Directions after the last component
  // are left out.
  TransformCoder(const PrincipalDirections& learned, std::vector<ComponentGroup> groups);

  int width() const { return static_cast<int>(learned_.mean.size()); }
  ComponentCoder& components() { return components_; }
  const ComponentCoder& components() const { return components_; }
  // Returns how many constants decoding needs besides symbols. The constants are the mean, and the directions
  // of coded components.
  std::size_t n_constants() const { return learned_.mean.size() * (1 + components_.n_components()); }

  // Replaces rows [n, width] by the result of coding and decoding. The threads share the products.
  void code(MatrixView<float> rows, int n_threads);

 private:
  const PrincipalDirections& learned_;
  ComponentCoder components_;
};

}  // namespace kvant
