// Provides a random rotation and the best levels for the coordinates of a rotated unit vector (TurboQuant,
// arXiv 2504.19874, section 3.1). Scalar quantizers of rotated vectors need both, for example the format gtq.
#pragma once

#include <cstdint>
#include <vector>

namespace kvant {

// Returns the rows [n, n] of an orthonormal matrix that is drawn uniformly (Gram-Schmidt on normal numbers).
// The matrix is the same in every run for given n and seed. Requires n >= 1.
std::vector<float> random_rotation(int n, std::uint64_t seed);

// Returns the 2^bits Lloyd-Max levels for a coordinate of a uniformly random unit vector in R^n, ascending
// and symmetric about 0. Requires n >= 2 and bits from 1 to 8. For large n, the levels approach the levels of
// N(0, 1) (lloyd_max.h), divided by sqrt(n). In R^3 the coordinate is uniform in [-1, 1], so the levels are
// equally spaced.
std::vector<double> unit_vector_levels(int n, int bits);

}  // namespace kvant
