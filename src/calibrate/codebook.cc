#include "calibrate/codebook.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/float16.h"
#include "calibrate/k_means.h"

namespace kvant {
namespace {

double sum_of_squares(MatrixView<const float> x) {
  double sum = 0;
  for (int r = 0; r < x.rows; ++r)
    for (int c = 0; c < x.cols; ++c) sum += static_cast<double>(x.row(r)[c]) * x.row(r)[c];
  return sum;
}

// Returns the rows x / |x|, without zero rows.
std::vector<float> unit_rows(MatrixView<const float> values) {
  std::vector<float> units;
  units.reserve(static_cast<std::size_t>(values.rows) * values.cols);
  for (int r = 0; r < values.rows; ++r) {
    const double norm = std::sqrt(sum_of_squares(values.slice(r, 1)));
    if (norm == 0) continue;
    for (int c = 0; c < values.cols; ++c) units.push_back(static_cast<float>(values.row(r)[c] / norm));
  }
  if (units.empty()) units.resize(values.cols);
  return units;
}

// Returns one set of points for each codebook.
std::vector<std::vector<float>> point_sets(const CodebookShape& shape, MatrixView<const float> values) {
  std::vector<float> all;
  if (shape.unit_vectors) {
    all = unit_rows(values);
  } else {
    for (int r = 0; r < values.rows; ++r) all.insert(all.end(), values.row(r), values.row(r) + values.cols);
  }
  if (!shape.per_sub_space) return {std::move(all)};
  std::vector<std::vector<float>> sets(values.cols / shape.dim);
  for (std::size_t i = 0; i < all.size(); i += shape.dim) {
    std::vector<float>& set = sets[i / shape.dim % sets.size()];
    set.insert(set.end(), all.begin() + static_cast<std::ptrdiff_t>(i),
               all.begin() + static_cast<std::ptrdiff_t>(i + shape.dim));
  }
  return sets;
}

MatrixView<const float> as_points(const std::vector<float>& set, int dim) {
  return {set.data(), static_cast<int>(set.size()) / dim, dim};
}

}  // namespace

Codebook learn_codebook(const CodebookShape& shape, MatrixView<const float> values, std::uint64_t seed) {
  const std::vector<std::vector<float>> sets = point_sets(shape, values);
  Codebook book;
  double before = 0;
  double after = 0;
  double energy = 0;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const MatrixView<const float> points = as_points(sets[i], shape.dim);
    const KMeans means = k_means(points, shape.centroids, {.seed = seed + i});
    book.centroids.insert(book.centroids.end(), means.centroids.begin(), means.centroids.end());
    before += means.error_before * points.rows;
    after += means.error_after * points.rows;
    energy += sum_of_squares(points);
  }
  if (energy == 0) return book;
  const std::vector<float> coarse = rounded_to_int8(book.centroids);
  double int8 = 0;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const MatrixView<const float> points = as_points(sets[i], shape.dim);
    const auto first = coarse.begin() + static_cast<std::ptrdiff_t>(i) * shape.centroids * shape.dim;
    int8 += mean_squared_distance(points,
                                  {first, first + static_cast<std::ptrdiff_t>(shape.centroids) * shape.dim}) *
            points.rows;
  }
  book.error_before = before / energy;
  book.error_after = after / energy;
  book.error_int8 = int8 / energy;
  return book;
}

float int8_scale(const std::vector<float>& values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  if (largest < 0x1p-100F) return 1.0F;
  // The scale is rounded up to 16 significant bits, so its product with a 7-bit integer fits into F32's 24
  // bits.
  const auto bits = std::bit_cast<std::uint32_t>(largest / 127.0F);
  return std::bit_cast<float>((bits + 0xffU) & ~0xffU);
}

std::vector<float> rounded_to_int8(std::vector<float> values) {
  const float scale = int8_scale(values);
  for (float& x : values) x = scale * std::round(x / scale);
  return values;
}

std::vector<float> rounded_to_f16(std::vector<float> values) {
  for (float& x : values) x = float_from_f16(f16_from_float_saturated(x));
  return values;
}

}  // namespace kvant
