#include "calibrate/k_means_start.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/simd_clones.h"

namespace kvant {
namespace {

constexpr int kBlock = 256;  // the distances of this many points are summed together

// Draw holds a part of the points, coordinate by coordinate, with each point's squared distance from its
// nearest centroid.
struct Draw {
  int n = 0;
  int dim = 0;
  std::vector<float> coordinates;  // [dim, n]
  std::vector<float> distances;    // [n]
  std::vector<double> blocks;      // [n / kBlock, rounded up], sums of distances
};

Draw take_points(MatrixView<const float> points, int n_drawn) {
  Draw draw;
  draw.n = std::min(points.rows, n_drawn);
  draw.dim = points.cols;
  draw.coordinates.resize(static_cast<std::size_t>(draw.n) * draw.dim);
  for (int i = 0; i < draw.n; ++i) {
    const float* x = points.row(static_cast<int>(static_cast<std::int64_t>(i) * points.rows / draw.n));
    for (int j = 0; j < draw.dim; ++j) draw.coordinates[static_cast<std::size_t>(j) * draw.n + i] = x[j];
  }
  draw.distances.assign(draw.n, std::numeric_limits<float>::max());
  draw.blocks.resize((draw.n + kBlock - 1) / kBlock);
  return draw;
}

// Sets distances[i] to min(distances[i], |x_i - c|^2) for n <= kBlock points, and returns the sum of the new
// distances.
KVANT_SIMD_CLONES float come_nearer(const float* coordinates, std::ptrdiff_t stride, int n, int dim,
                                    const float* centroid, float* distances) {
  float nearer[kBlock] = {};
  for (int j = 0; j < dim; ++j) {
    for (int i = 0; i < n; ++i) {
      const float difference = coordinates[j * stride + i] - centroid[j];
      nearer[i] += difference * difference;
    }
  }
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    distances[i] = std::min(distances[i], nearer[i]);
    sum += distances[i];
  }
  return sum;
}

void add_centroid(Draw& draw, const float* centroid) {
  for (std::size_t b = 0; b < draw.blocks.size(); ++b) {
    const int first = static_cast<int>(b) * kBlock;
    draw.blocks[b] = come_nearer(draw.coordinates.data() + first, draw.n, std::min(kBlock, draw.n - first),
                                 draw.dim, centroid, draw.distances.data() + first);
  }
}

// Returns a number in [0, 1).
double unit(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

// Returns the index of a point that is drawn with probability proportional to `distances`.
int draw_point(const Draw& draw, std::mt19937_64& random) {
  double total = 0;
  for (const double block : draw.blocks) total += block;
  double left = unit(random) * total;
  std::size_t b = 0;
  while (b + 1 < draw.blocks.size() && left >= draw.blocks[b]) left -= draw.blocks[b++];
  const int first = static_cast<int>(b) * kBlock;
  const int end = std::min(first + kBlock, draw.n);
  for (int i = first; i < end; ++i) {
    if (left < draw.distances[i]) return i;
    left -= draw.distances[i];
  }
  return end - 1;
}

}  // namespace

std::vector<float> spread_centroids(MatrixView<const float> points, int n_centroids, int n_drawn,
                                    std::mt19937_64& random) {
  Draw draw = take_points(points, n_drawn);
  std::vector<float> centroids(static_cast<std::size_t>(n_centroids) * draw.dim);
  for (int c = 0; c < n_centroids; ++c) {
    const int chosen = c == 0 ? static_cast<int>(random() % draw.n) : draw_point(draw, random);
    float* centroid = centroids.data() + static_cast<std::size_t>(c) * draw.dim;
    for (int j = 0; j < draw.dim; ++j)
      centroid[j] = draw.coordinates[static_cast<std::size_t>(j) * draw.n + chosen];
    add_centroid(draw, centroid);
  }
  return centroids;
}

}  // namespace kvant
