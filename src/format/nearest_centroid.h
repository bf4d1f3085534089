// Finds the nearest centroid of a codebook for many vectors at once. The formats of vq.cc encode with this
// search, and the training of codebooks also uses the search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

// A call searches for at most kMaxSearchVectors vectors. The number of centroids is a multiple of
// kCentroidLanes.
inline constexpr int kMaxSearchVectors = 4096;
inline constexpr int kCentroidLanes = 16;

// Describes the search for one instruction set. search() has the arguments of nearest_centroids().
struct CentroidSearch {
  const char* name;  // such as "avx2"
  void (*search)(const float* vectors, std::ptrdiff_t stride, int n, int dim, const float* centroids,
                 int n_centroids, std::uint16_t* nearest);
};
// Returns the searches that this machine can run, the fastest first.
const std::vector<CentroidSearch>& centroid_searches();

// Runs the fastest search. Computes nearest[i], the c with the smallest |vectors[i] - centroids[c]|. At a
// tie, the first centroid wins.
//   vectors:   n of them, `dim` numbers each, vector i at vectors + i * stride; n <= kMaxSearchVectors
//   centroids: [n_centroids, dim]; n_centroids a multiple of kCentroidLanes, at most 65536
//   dim:       2, 4 or 8
// Distances are compared as <x, c> - |c|^2 / 2 in F32, so a centroid that is farther by a rounding error may
// win.
void nearest_centroids(const float* vectors, std::ptrdiff_t stride, int n, int dim, const float* centroids,
                       int n_centroids, std::uint16_t* nearest);

}  // namespace kvant
