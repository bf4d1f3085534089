// Balances the norms of queries and of keys.
//
// Where both have weights w_q and w_k, [d] each, a score is a sum over channels of w_q,i w_k,i times normed
// values. Training fixes the products alone, so keys may have channels twenty times as large as others while
// queries are small there (Gemma 3). A rotated cache spreads its errors evenly over channels. Then large
// channels of keys set the size of errors, which large channels of queries read.
//
// Scores stay the same if channel i of keys is multiplied by f_i and channel i of queries is divided by f_i.
// Their error grows with (sum of f_i^2 w_k,i^2) (sum of w_q,i^2 / f_i^2), which is least at f_i^2 = |w_q,i| /
// |w_k,i|. Here f_i is the nearest power of two. Floating-point numbers are multiplied by it exactly, so an
// unquantized cache gives the same bits with and without.
#pragma once

#include <span>
#include <vector>

namespace kvant {

// The channels of a head that RoPE rotates together after the norm need the same factor.
struct TurnedPairs {
  int n_channels = 0;  // the first so many channels of a head are turned; 0: none
  bool neox = false;   // channels (i, i + n_channels / 2) instead of (2 i, 2 i + 1)
};

// Multiplies the weights of both norms by powers of two. queries: [n, d], keys: [m, d]. n and m are numbers
// of heads with weights of their own (1 if all heads share them), and the larger is a multiple of the
// smaller: consecutive heads belong together. Pairs without a finite, nonzero ratio stay unchanged.
void balance_norms(std::span<float> queries, std::span<float> keys, int d, const TurnedPairs& pairs);

}  // namespace kvant
