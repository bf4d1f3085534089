// nova is the map x -> x F of NOVA-KV (arXiv 2608.04074; Amir-zsh/nova-kv at d81c77b). Calibration derives
// the invertible matrix F [d, d] from what queries read. With the queries' second moments M = E[q^T q] and
// the keys' covariance C, A = M^(1/2) C M^(1/2) has the eigenvectors E, by falling eigenvalue, and F =
// M^(1/2) E. Errors of x F then change scores equally in all directions, and q is mapped by the inverse of
// F^T.
//
// The columns of F are dealt out to groups of 4: the column of rank r goes to group r mod (d / 4). Every
// group thus has directions of all sizes, as product quantization of 4 channels needs.
//
// V has no queries. There M is the unit matrix, so F has the principal directions.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "transform/calibrated_constants.h"
#include "transform/kinds.h"
#include "transform/orthonormal_basis.h"

namespace kvant {
namespace {

// Inverts `matrix` [d, d] by Gauss-Jordan elimination with row pivots. Returns an empty vector if the matrix
// is singular or nearly singular.
std::vector<double> inverted(std::vector<double> matrix, int d) {
  constexpr double kLeastPivot = 1e-10;  // relative to the largest value
  double largest = 0;
  for (const double x : matrix) largest = std::max(largest, std::fabs(x));
  std::vector<double> inverse(matrix.size());
  for (int i = 0; i < d; ++i) inverse[static_cast<std::size_t>(i) * d + i] = 1;
  const auto row_of = [d](std::vector<double>& m, int row) { return &m[static_cast<std::size_t>(row) * d]; };
  for (int column = 0; column < d; ++column) {
    int pivot = column;
    for (int row = column + 1; row < d; ++row) {
      if (std::fabs(row_of(matrix, row)[column]) > std::fabs(row_of(matrix, pivot)[column])) pivot = row;
    }
    const double head = row_of(matrix, pivot)[column];
    if (std::fabs(head) <= kLeastPivot * largest) return {};
    for (std::vector<double>* m : {&matrix, &inverse}) {
      if (pivot != column) std::swap_ranges(row_of(*m, column), row_of(*m, column) + d, row_of(*m, pivot));
      for (int i = 0; i < d; ++i) row_of(*m, column)[i] /= head;
    }
    for (int row = 0; row < d; ++row) {
      const double factor = row == column ? 0 : row_of(matrix, row)[column];
      if (factor == 0) continue;
      for (std::vector<double>* m : {&matrix, &inverse})
        for (int i = 0; i < d; ++i) row_of(*m, row)[i] -= factor * row_of(*m, column)[i];
    }
  }
  return inverse;
}

class Nova final : public TransformStep {
 public:
  Nova(std::vector<float> matrix, std::vector<float> inverse, int d)
      : matrix_(std::move(matrix)), inverse_(std::move(inverse)), query_(transposed(inverse_, d)) {}
  void forward(MatrixView<float> x) const override { multiply_rows(x, matrix_); }
  void inverse(MatrixView<float> x) const override { multiply_rows(x, inverse_); }
  void query(MatrixView<float> q, float* /*offset*/) const override { multiply_rows(q, query_); }

 private:
  std::vector<float> matrix_, inverse_, query_;  // [d, d]
};

Result<std::unique_ptr<TransformStep>> make(int head_dim, const HeadConstants& constants,
                                            const std::string& constant_name) {
  const auto found = calibrated_constants(constants, constant_name, basis_size(head_dim));
  if (!found.ok()) return found.error();
  const std::vector<double> inverse = inverted({found->begin(), found->end()}, head_dim);
  if (inverse.empty() || !std::ranges::all_of(inverse, [](double x) { return std::isfinite(x); })) {
    return error("the constants '{}' of layer {} KV head {} {} have no inverse: calibrate again",
                 constant_name, constants.layer, constants.kv_head, side_name(constants.side));
  }
  return std::unique_ptr<TransformStep>(
      std::make_unique<Nova>(std::vector<float>(found->begin(), found->end()),
                             std::vector<float>(inverse.begin(), inverse.end()), head_dim));
}

}  // namespace

const TransformKind nova_transform = {
    "nova", "map after which all directions matter equally to attention", true, false, make, basis_size};

}  // namespace kvant
