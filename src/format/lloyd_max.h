// The Lloyd-Max quantizer: the levels that leave the smallest mean squared error for a given distribution.
#pragma once

#include <vector>

namespace kvant {

// The 2^bits levels for the normal distribution N(0, 1), ascending and symmetric about 0; bits: 1 to 6. Found
// by Lloyd's iteration (Lloyd 1982; Max 1960, whose table the test holds it against): each boundary half-way
// between its levels, each level the mean of the distribution between its boundaries.
std::vector<double> lloyd_max_levels(int bits);

}  // namespace kvant
