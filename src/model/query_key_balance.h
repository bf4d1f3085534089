// Balances the norms of queries and keys.
//
// Queries and keys may have norm weights w_q and w_k, [d] each. A score then sums w_q,i w_k,i times the
// normed values over the channels i. Training determines only the products. Keys may therefore have channels
// twenty times as large as others, in which queries are small (Gemma 3). A rotated cache spreads its errors
// evenly over channels. The large channels of keys then set the size of errors, which the large channels of
// queries read.
//
// Scores stay the same if channel i of keys is multiplied by f_i and channel i of queries is divided by f_i.
// The scores' error grows with (sum of f_i^2 w_k,i^2) (sum of w_q,i^2 / f_i^2), which is least for f_i^2 =
// |w_q,i| / |w_k,i|. The code uses the nearest power of two as f_i. Multiplying floating-point numbers by a
// power of two is exact, so an unquantized cache gives the same bits with and without balancing.
#pragma once

#include <span>
#include <vector>

namespace kvant {

// TurnedPairs describes the channels of a head that RoPE rotates together after the norm. The two channels of
// a pair need the same factor.
struct TurnedPairs {
  int n_channels = 0;  // RoPE rotates this many first channels of a head; 0 means none
  bool neox = false;   // the pairs are (i, i + n_channels / 2) in place of (2 i, 2 i + 1)
};

// Multiplies the weights of both norms by powers of two. The weights are queries [n, d] and keys [m, d],
// where n and m count the heads with weights of their own, or are 1 if all heads share the weights. The
// larger number is a multiple of the smaller, and consecutive heads belong together. Pairs without a finite,
// nonzero ratio stay unchanged.
void balance_norms(std::span<float> queries, std::span<float> keys, int d, const TurnedPairs& pairs);

}  // namespace kvant
