// ErrorMetric: what errors of K cost where the queries that read it are known, and the search for codes under
// it, as a filter.
//
// An error e of a key changes the scores of the queries q that read it by q.e; on average over queries that
// costs e^T E[q q^T] e. The metric here is that matrix with its smaller eigenvalues made equal, in units of
// these:
//   M = 1 + V V^T,  V [d, rank]
// The sum over a row in the order of its values is the one that minimizes out all later errors: with
// s(i) = V_0 e_0 + ... + V_(i-1) e_(i-1) (rank numbers, V_i: the row of value i),
//   e^T M e = sum of D_i (e_i + g_i.s(i))^2
//   K_n = 1,  D_i = 1 + V_i^T K_(i+1) V_i,  g_i = K_(i+1) V_i / D_i,  K_i = K_(i+1) - D_i g_i g_i^T
// which is the LDL^T decomposition of M (Gill, Golub, Murray, Saunders 1974 for rank one; here by the
// recursion of recursive least squares). Rounding value by value to the target x_i + g_i.s(i) is LDLQ's
// rounding with feedback (Chee et al. 2023, QuIP; Frantar et al. 2022, GPTQ, do the same), known from
// noise-shaping converters (Spang and Schultheiss 1962). Choosing a trellis path by the sum, each survivor
// with the errors of its own past, is per-survivor processing (Raheli, Polydoros and Tzou 1995); QTIP (Tseng
// et al. 2024) feeds back between whole blocks instead.
#pragma once

#include <array>
#include <span>
#include <vector>

namespace kvant {

inline constexpr int kMetricRank = 8;  // numbers that a path remembers

// Of value i. So it is in kvant_decode_layer (kvant/kvant.h), too.
struct FeedbackStep {
  float weight;                               // D_i
  std::array<float, kMetricRank> feedback;    // g_i
  std::array<float, kMetricRank> directions;  // V_i
};

class ErrorMetric {
 public:
  // directions: V, [d][kMetricRank], finite.
  explicit ErrorMetric(std::span<const float> directions);

  std::span<const FeedbackStep> steps() const { return steps_; }  // [d]
  struct Products {
    double aa, ab, bb;
  };
  // a^T M a, a^T M b, b^T M b, [d] each.
  Products products(const float* a, const float* b) const;
  double product(const float* a, const float* b) const { return products(a, b).ab; }

 private:
  std::vector<FeedbackStep> steps_;
};

}  // namespace kvant
