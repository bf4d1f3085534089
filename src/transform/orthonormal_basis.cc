#include "transform/orthonormal_basis.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/simd_clones.h"
#include "transform/calibrated_constants.h"

namespace kvant {
namespace {

constexpr float kOrthonormalTolerance = 1e-3F;  // largest allowed deviation in the product of two rows

// Computes product = row * matrix. The shapes are row [d], matrix [d, d] and product [d].
KVANT_SIMD_CLONES void multiply_row(const float* row, const float* matrix, int d, float* product) {
  std::fill(product, product + d, 0.0F);
  for (int i = 0; i < d; ++i) {
    const float factor = row[i];
    const float* line = matrix + static_cast<std::size_t>(i) * d;
    for (int j = 0; j < d; ++j) product[j] += factor * line[j];
  }
}

}  // namespace

void multiply_rows(MatrixView<float> x, const std::vector<float>& matrix) {
  std::vector<float> product(x.cols);
  for (int r = 0; r < x.rows; ++r) {
    multiply_row(x.row(r), matrix.data(), x.cols, product.data());
    std::copy(product.begin(), product.end(), x.row(r));
  }
}

std::vector<float> transposed(std::span<const float> matrix, int d) {
  std::vector<float> result(matrix.size());
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) {
      result[static_cast<std::size_t>(j) * d + i] = matrix[static_cast<std::size_t>(i) * d + j];
    }
  }
  return result;
}

namespace {

// Returns whether matrix [d, d] times its transpose is the unit matrix.
bool orthonormal(const std::vector<float>& matrix, const std::vector<float>& transpose, int d) {
  std::vector<float> products(d);
  for (int i = 0; i < d; ++i) {
    multiply_row(&matrix[static_cast<std::size_t>(i) * d], transpose.data(), d, products.data());
    products[i] -= 1.0F;
    for (float x : products) {
      if (std::fabs(x) > kOrthonormalTolerance) return false;
    }
  }
  return true;
}

class OrthonormalBasis final : public TransformStep {
 public:
  OrthonormalBasis(std::vector<float> basis, std::vector<float> transpose)
      : basis_(std::move(basis)), transpose_(std::move(transpose)) {}
  void forward(MatrixView<float> x) const override { multiply_rows(x, transpose_); }
  void inverse(MatrixView<float> x) const override { multiply_rows(x, basis_); }
  void query(MatrixView<float> q, float* /*offset*/) const override { forward(q); }

 private:
  std::vector<float> basis_, transpose_;  // [d, d]
};

}  // namespace

Result<std::unique_ptr<TransformStep>> make_orthonormal_basis(int head_dim, const HeadConstants& constants,
                                                              const std::string& constant_name) {
  const auto found = calibrated_constants(constants, constant_name, basis_size(head_dim));
  if (!found.ok()) return found.error();
  std::vector<float> basis(found->begin(), found->end());
  std::vector<float> transpose = transposed(*found, head_dim);
  if (!orthonormal(basis, transpose, head_dim)) {
    return error("the constants '{}' of layer {} KV head {} {} are not orthonormal: calibrate again",
                 constant_name, constants.layer, constants.kv_head, side_name(constants.side));
  }
  return std::unique_ptr<TransformStep>(
      std::make_unique<OrthonormalBasis>(std::move(basis), std::move(transpose)));
}

}  // namespace kvant
