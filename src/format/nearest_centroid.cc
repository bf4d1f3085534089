#include "format/nearest_centroid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/processor_features.h"

namespace kvant {
namespace {

// Floats and Ints have as many numbers as a register. The compiler would compare longer vectors number by
// number, which takes 6 to 18 times as long.
template <int Lanes>
struct Vectors {
  // GCC would ignore the attribute in an alias, because Lanes is a parameter of the template.
  typedef float Floats __attribute__((vector_size(4 * Lanes)));
  typedef std::int32_t Ints __attribute__((vector_size(4 * Lanes)));
};

constexpr int kTileFloats = 4096;  // floats in a tile of centroids: 16 KiB, which stay in the L1 cache
constexpr int kVectorsAtOnce = 4;  // vectors that share each load of centroids

// Holds centroids [first, first + n) of a codebook, coordinate by coordinate.
template <int Lanes>
struct Tile {
  using Floats = typename Vectors<Lanes>::Floats;
  Floats coordinates[kTileFloats / Lanes];  // [n / Lanes][dim] vectors of Lanes centroids
  Floats offsets[kTileFloats / 2 / Lanes];  // -|c|^2 / 2, for dim >= 2
  int first = 0;
  int n_vectors = 0;  // n / Lanes
};

struct Best {
  float score;
  std::int32_t index;
};

template <int Dim, int Lanes>
[[gnu::always_inline]] inline void load_tile(const float* centroids, int first, int n, Tile<Lanes>& tile) {
  using Floats = typename Vectors<Lanes>::Floats;
  tile.first = first;
  tile.n_vectors = n / Lanes;
  for (int v = 0; v < tile.n_vectors; ++v) {
    Floats half{};
    for (int j = 0; j < Dim; ++j) {
      Floats coordinate;
      for (int lane = 0; lane < Lanes; ++lane)
        coordinate[lane] = centroids[static_cast<std::ptrdiff_t>(first + v * Lanes + lane) * Dim + j];
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
template <int Dim, int Lanes>
[[gnu::always_inline]] inline void search_tile(const Tile<Lanes>& tile, const float (*x)[Dim], Best* best) {
  using Floats = typename Vectors<Lanes>::Floats;
  using Ints = typename Vectors<Lanes>::Ints;
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
    for (int lane = 0; lane < Lanes; ++lane) {
      const std::int32_t index = tile.first + steps[q][lane] * Lanes + lane;
      const float score = scores[q][lane];
      if (score > best[q].score || (score == best[q].score && index < best[q].index))
        best[q] = {score, index};
    }
  }
}

template <int Dim, int Lanes>
[[gnu::always_inline]] inline void search(const float* vectors, std::ptrdiff_t stride, int n,
                                          const float* centroids, int n_centroids, Best* best) {
  Tile<Lanes> tile;
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

template <int Lanes>
[[gnu::always_inline]] inline void search_any(const float* vectors, std::ptrdiff_t stride, int n, int dim,
                                              const float* centroids, int n_centroids,
                                              std::uint16_t* nearest) {
  std::array<Best, kMaxSearchVectors + kVectorsAtOnce> best;
  std::fill_n(best.begin(), n + kVectorsAtOnce, Best{-std::numeric_limits<float>::infinity(), 0});
  if (dim == 2)
    search<2, Lanes>(vectors, stride, n, centroids, n_centroids, best.data());
  else if (dim == 4)
    search<4, Lanes>(vectors, stride, n, centroids, n_centroids, best.data());
  else
    search<8, Lanes>(vectors, stride, n, centroids, n_centroids, best.data());
  for (int i = 0; i < n; ++i) nearest[i] = static_cast<std::uint16_t>(best[i].index);
}

// SSE2 and NEON have registers of four numbers.
void search_4_lanes(const float* vectors, std::ptrdiff_t stride, int n, int dim, const float* centroids,
                    int n_centroids, std::uint16_t* nearest) {
  search_any<4>(vectors, stride, n, dim, centroids, n_centroids, nearest);
}
#ifdef __x86_64__
[[gnu::target("avx2,fma")]] void search_8_lanes(const float* vectors, std::ptrdiff_t stride, int n, int dim,
                                                const float* centroids, int n_centroids,
                                                std::uint16_t* nearest) {
  search_any<8>(vectors, stride, n, dim, centroids, n_centroids, nearest);
}
[[gnu::target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]] void search_16_lanes(
    const float* vectors, std::ptrdiff_t stride, int n, int dim, const float* centroids, int n_centroids,
    std::uint16_t* nearest) {
  search_any<16>(vectors, stride, n, dim, centroids, n_centroids, nearest);
}
#endif

std::vector<CentroidSearch> find_searches() {
  std::vector<CentroidSearch> found;
#ifdef __x86_64__
  const ProcessorFeatures& has = processor_features();
  if (has.avx512) found.push_back({"avx512", search_16_lanes});
  if (has.avx2 && has.fma) found.push_back({"avx2", search_8_lanes});
#endif
  found.push_back({"portable", search_4_lanes});
  return found;
}

}  // namespace

const std::vector<CentroidSearch>& centroid_searches() {
  static const std::vector<CentroidSearch> searches = find_searches();
  return searches;
}

void nearest_centroids(const float* vectors, std::ptrdiff_t stride, int n, int dim, const float* centroids,
                       int n_centroids, std::uint16_t* nearest) {
  KVANT_CHECK(n <= kMaxSearchVectors, "too many vectors for one search");
  KVANT_CHECK(dim == 2 || dim == 4 || dim == 8, "sub-vectors have 2, 4 or 8 channels");
  KVANT_CHECK(n_centroids % kCentroidLanes == 0 && n_centroids <= 65536,
              "a codebook of 16 to 65536 centroids");
  centroid_searches().front().search(vectors, stride, n, dim, centroids, n_centroids, nearest);
}

}  // namespace kvant
