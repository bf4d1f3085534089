#include "format/nearest_centroid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/simd_clones.h"

namespace kvant {
namespace {

// Floats and Ints have 16 numbers. The compiler splits such vectors into as many registers as the instruction
// set needs.
using Floats = float __attribute__((vector_size(4 * kCentroidLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kCentroidLanes)));

constexpr int kTileFloats = 4096;  // floats in a tile of centroids: 16 KiB, which stay in the L1 cache
// kMaxTileVectors is the number of vectors of 16 centroids in a tile, for dim >= 2.
constexpr int kMaxTileVectors = kTileFloats / 2 / kCentroidLanes;
constexpr int kVectorsAtOnce = 4;  // vectors that share each load of centroids

// Holds centroids [first, first + n) of a codebook, coordinate by coordinate.
struct Tile {
  std::array<Floats, kTileFloats / kCentroidLanes> coordinates;  // [n / 16][dim] vectors of 16 centroids
  std::array<Floats, kMaxTileVectors> offsets;                   // -|c|^2 / 2
  int first = 0;
  int n_vectors = 0;  // n / 16
};

struct Best {
  float score;
  std::int32_t index;
};

template <int Dim>
[[gnu::always_inline]] inline void load_tile(const float* centroids, int first, int n, Tile& tile) {
  tile.first = first;
  tile.n_vectors = n / kCentroidLanes;
  for (int v = 0; v < tile.n_vectors; ++v) {
    Floats half{};
    for (int j = 0; j < Dim; ++j) {
      Floats coordinate;
      for (int lane = 0; lane < kCentroidLanes; ++lane) {
        coordinate[lane] =
            centroids[static_cast<std::ptrdiff_t>(first + v * kCentroidLanes + lane) * Dim + j];
      }
      half -= coordinate * coordinate * 0.5F;
      tile.coordinates[v * Dim + j] = coordinate;
    }
    tile.offsets[v] = half;
  }
}

// Loads a vector x [Dim]. Numbers below 2^-100 become 0, because they do not affect the result and products
// with denormals are a hundred times slower.
template <int Dim>
[[gnu::always_inline]] inline void load_vector(const float* from, float* x) {
  for (int j = 0; j < Dim; ++j) x[j] = std::fabs(from[j]) < 0x1p-100F ? 0 : from[j];
}

// Compares the vectors x [kVectorsAtOnce] with the tile's centroids and updates best [kVectorsAtOnce].
template <int Dim>
[[gnu::always_inline]] inline void search_tile(const Tile& tile, const float (*x)[Dim], Best* best) {
  Floats scores[kVectorsAtOnce];
  Ints steps[kVectorsAtOnce];  // The index v at which each lane had its best score.
  for (int q = 0; q < kVectorsAtOnce; ++q) {
    scores[q] = Floats{} - std::numeric_limits<float>::infinity();
    steps[q] = Ints{};
  }
  for (int v = 0; v < tile.n_vectors; ++v) {
#pragma GCC unroll 4
    for (int q = 0; q < kVectorsAtOnce; ++q) {
      Floats score = tile.offsets[v];
#pragma GCC unroll 8
      for (int j = 0; j < Dim; ++j) score += tile.coordinates[v * Dim + j] * x[q][j];
      const Ints better = score > scores[q];
      scores[q] = better ? score : scores[q];
      steps[q] = better ? Ints{} + v : steps[q];
    }
  }
  for (int q = 0; q < kVectorsAtOnce; ++q) {
    for (int lane = 0; lane < kCentroidLanes; ++lane) {
      const std::int32_t index = tile.first + steps[q][lane] * kCentroidLanes + lane;
      const float score = scores[q][lane];
      if (score > best[q].score || (score == best[q].score && index < best[q].index))
        best[q] = {score, index};
    }
  }
}

template <int Dim>
[[gnu::always_inline]] inline void search(const float* vectors, std::ptrdiff_t stride, int n,
                                          const float* centroids, int n_centroids, Best* best) {
  Tile tile;
  constexpr int kTileCentroids = kTileFloats / Dim;
  for (int first = 0; first < n_centroids; first += kTileCentroids) {
    load_tile<Dim>(centroids, first, std::min(kTileCentroids, n_centroids - first), tile);
    for (int i = 0; i < n; i += kVectorsAtOnce) {
      float x[kVectorsAtOnce][Dim];  // If n ends within x, the last vector is repeated.
      for (int q = 0; q < kVectorsAtOnce; ++q)
        load_vector<Dim>(vectors + std::min(i + q, n - 1) * stride, x[q]);
      search_tile<Dim>(tile, x, best + i);
    }
  }
}

KVANT_SIMD_CLONES void search_any(const float* vectors, std::ptrdiff_t stride, int n, int dim,
                                  const float* centroids, int n_centroids, Best* best) {
  switch (dim) {
    case 2:
      return search<2>(vectors, stride, n, centroids, n_centroids, best);
    case 4:
      return search<4>(vectors, stride, n, centroids, n_centroids, best);
    case 8:
      return search<8>(vectors, stride, n, centroids, n_centroids, best);
    default:
      KVANT_CHECK(false, "sub-vectors have 2, 4 or 8 channels");
  }
}

}  // namespace

void nearest_centroids(const float* vectors, std::ptrdiff_t stride, int n, int dim, const float* centroids,
                       int n_centroids, std::uint16_t* nearest) {
  KVANT_CHECK(n <= kMaxSearchVectors, "too many vectors for one search");
  KVANT_CHECK(n_centroids % kCentroidLanes == 0 && n_centroids <= 65536,
              "a codebook of 16 to 65536 centroids");
  std::array<Best, kMaxSearchVectors + kVectorsAtOnce> best;
  std::fill_n(best.begin(), n + kVectorsAtOnce, Best{-std::numeric_limits<float>::infinity(), 0});
  search_any(vectors, stride, n, dim, centroids, n_centroids, best.data());
  for (int i = 0; i < n; ++i) nearest[i] = static_cast<std::uint16_t>(best[i].index);
}

}  // namespace kvant
