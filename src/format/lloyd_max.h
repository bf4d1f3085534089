// Computes the levels of the Lloyd-Max quantizer, which minimize the mean squared error for a given
// distribution. The format lm uses the quantizer of the normal distribution.
#pragma once

#include <vector>

namespace kvant {

// Returns the 2^bits levels for the normal distribution N(0, 1), ascending and symmetric about 0. `bits` is 1
// to 6. Lloyd's iteration (Lloyd 1982; Max 1960) puts each boundary halfway between its levels, and each
// level at the mean of the distribution between its boundaries.
std::vector<double> lloyd_max_levels(int bits);

}  // namespace kvant
