#include "calibrate/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace kvant {
namespace {

// Square is a square matrix [d, d].
struct Square {
  int d;
  std::vector<double> values;
  double& at(int i, int j) { return values[static_cast<std::size_t>(i) * d + j]; }
};

double off_diagonal(Square& a) {
  double sum = 0;
  for (int i = 0; i < a.d; ++i)
    for (int j = 0; j < i; ++j) sum += a.at(i, j) * a.at(i, j);
  return sum;
}

// Rotates rows and columns p and q of the symmetric matrix `a`, after which a_pq is 0. The rows of `basis`
// are rotated in the same way.
void rotate(Square& a, Square& basis, int p, int q) {
  const double apq = a.at(p, q);
  if (apq == 0) return;
  const double theta = (a.at(q, q) - a.at(p, p)) / (2 * apq);
  const double tangent = (theta >= 0 ? 1.0 : -1.0) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double cosine = 1 / std::sqrt(tangent * tangent + 1);
  const double sine = tangent * cosine;
  const auto turn = [&](double& x, double& y) {
    const double old = x;
    x = cosine * old - sine * y;
    y = sine * old + cosine * y;
  };
  for (int k = 0; k < a.d; ++k) turn(a.at(k, p), a.at(k, q));
  for (int k = 0; k < a.d; ++k) turn(a.at(p, k), a.at(q, k));
  for (int k = 0; k < a.d; ++k) turn(basis.at(p, k), basis.at(q, k));
}

}  // namespace

SymmetricEigen symmetric_eigen(std::vector<double> matrix, int d) {
  constexpr int kMaxSweeps = 50;
  constexpr double kTolerance = 1e-20;  // the squared sum off the diagonal, relative to the squared trace
  Square a{d, std::move(matrix)};
  Square basis{d, std::vector<double>(static_cast<std::size_t>(d) * d)};
  double trace = 0;
  for (int i = 0; i < d; ++i) {
    basis.at(i, i) = 1;
    trace += a.at(i, i);
  }
  for (int sweep = 0; sweep < kMaxSweeps && off_diagonal(a) > kTolerance * trace * trace; ++sweep) {
    for (int p = 0; p < d; ++p)
      for (int q = p + 1; q < d; ++q) rotate(a, basis, p, q);
  }
  std::vector<int> order(d);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return a.at(i, i) > a.at(j, j); });
  SymmetricEigen found;
  found.vectors.reserve(basis.values.size());
  for (const int i : order) {
    found.values.push_back(a.at(i, i));
    for (int j = 0; j < d; ++j) found.vectors.push_back(basis.at(i, j));
  }
  return found;
}

}  // namespace kvant
