// ErrorMetric is the cost of an error of K, given the queries that read the key, in the form of a filter for
// encoders.
//
// An error e of a key changes the score of a query q by q.e. The mean cost over queries is e^T E[q q^T] e.
// The metric keeps the largest eigenvalues of E[q q^T] and replaces all other eigenvalues by one number,
// which serves as the unit:
//   M = 1 + U U^T,  U [d, rank]
// Encoders choose the values of a row in order. The cost is therefore written as a sum of one term per value,
// which assumes the best choice of all later errors. With s(i) = U_0 e_0 + ... + U_(i-1) e_(i-1) (rank
// numbers; U_i is the row of value i),
//   e^T M e = sum of D_i (e_i + g_i.s(i))^2
//   K_n = 1,  D_i = 1 + U_i^T K_(i+1) U_i,  g_i = K_(i+1) U_i / D_i,  K_i = K_(i+1) - D_i g_i g_i^T
// The sum is the LDL^T decomposition of M (Gill, Golub, Murray, Saunders 1974 for rank one), computed by the
// recursion of recursive least squares. Rounding value by value to the target x_i + g_i.s(i) is LDLQ's
// rounding with feedback (Chee et al. 2023, QuIP). Frantar et al. 2022 (GPTQ) do the same, and noise-shaping
// converters did so earlier (Spang and Schultheiss 1962). Choosing a trellis path by this sum, where each
// survivor carries the errors of its own past, is per-survivor processing (Raheli, Polydoros and Tzou 1995).
// QTIP (Tseng et al. 2024) feeds back between whole blocks instead.
#pragma once

#include <array>
#include <span>
#include <vector>

namespace kvant {

inline constexpr int kMetricRank = 8;  // numbers in s, which each path of a search carries

// Holds the numbers of value i. The arrays of kvant_decode_layer (kvant/kvant.h) have this layout.
struct FeedbackStep {
  float weight;                               // D_i
  std::array<float, kMetricRank> feedback;    // g_i
  std::array<float, kMetricRank> directions;  // U_i
};

class ErrorMetric {
 public:
  // `directions` holds U [d][kMetricRank]. All numbers are finite.
  explicit ErrorMetric(std::span<const float> directions);

  std::span<const FeedbackStep> steps() const { return steps_; }  // [d]
  struct Products {
    double aa, ab, bb;
  };
  // Returns a^T M a, a^T M b and b^T M b for vectors [d].
  Products products(const float* a, const float* b) const;
  double product(const float* a, const float* b) const { return products(a, b).ab; }

 private:
  std::vector<FeedbackStep> steps_;
};

}  // namespace kvant
