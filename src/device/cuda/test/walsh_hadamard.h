// Multiplies rows by the Walsh-Hadamard matrix in double precision, which is the expected result in tests of
// rotations. Each product follows the definition, without a fast transform.
#pragma once

#include <bit>
#include <cmath>
#include <vector>

namespace kvant::cuda {

// Returns the rows [n][d] times the orthonormal Walsh-Hadamard matrix.
template <class T>
std::vector<double> rotated(const std::vector<T>& rows, int d) {
  std::vector<double> result(rows.size());
  for (std::size_t row = 0; row < rows.size(); row += d)
    for (int i = 0; i < d; ++i) {
      double sum = 0;
      for (int j = 0; j < d; ++j) {
        const double x = rows[row + j];
        sum += std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? x : -x;
      }
      result[row + i] = sum / std::sqrt(d);
    }
  return result;
}

}  // namespace kvant::cuda
