// What scalar quantizers of rotated vectors need to know: a random rotation, and the levels that suit the
// coordinates of a unit vector behind it (TurboQuant, arXiv 2504.19874, section 3.1).
#pragma once

#include <cstdint>
#include <vector>

namespace kvant {

// The rows [n, n] of an orthonormal matrix that is drawn uniformly (by Gram and Schmidt, from normal
// numbers), the same in every run for an n and a seed; n >= 1.
std::vector<float> random_rotation(int n, std::uint64_t seed);

// The 2^bits Lloyd-Max levels for a coordinate of a unit vector in R^n whose direction is uniform, ascending
// and symmetric about 0; n >= 2, bits: 1 to 8. For large n those of N(0, 1) (lloyd_max.h) over sqrt(n); in
// R^3 the coordinate is uniform in [-1, 1], and so are they.
std::vector<double> unit_vector_levels(int n, int bits);

}  // namespace kvant
