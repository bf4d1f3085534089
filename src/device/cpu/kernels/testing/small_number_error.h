// Bounds the error of small numbers (byte_kernels.h) in tests that compare attention with exact attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "device/cpu/kernels/byte_kernels.h"
#include "device/cpu/kernels/page_products.h"
#include "format/format.h"

namespace kvant::cpu::testing {

// Holds the steps of small numbers, as shares of the largest value of a query and of the largest weight of a
// page. A step of 0 stands for kernels without such products, and for the reference, which is null.
struct SmallSteps {
  double of_queries = 0, of_weights = 0;
};
inline SmallSteps small_steps(const ByteKernels* kernels) {
  if (kernels == nullptr) return {};
  const std::vector<float> ones(kPageTokens, 1.0F);
  ByteQuery query;
  kernels->prepare_query(ones.data(), nullptr, 8, 1, {.small_share = 1}, query);
  ByteWeights weights;
  WeightRounding rounding{.share = 1};
  kernels->prepare_weights(ones.data(), {nullptr, nullptr}, 0, kPageTokens, &rounding, weights);
  return {query.small ? query.unit : 0, weights.small ? weights.unit : 0};
}

// Describes the queries of a test.
struct QuerySizes {
  double largest;  // the largest value of a query, divided by the RMS of its values
  double product;  // the length of a query, times the RMS of K's values, times the softmax scale
};

// Returns the error that small numbers may add to outputs, as a share of the outputs. The values of V have no
// common mean.
inline double small_number_error(const ByteKernels* kernels, const std::string& format, int d,
                                 const QuerySizes& q) {
  const auto scheme = find_format(format)->code_scheme(d);
  if (!scheme) return 0;
  const SmallSteps step = small_steps(kernels);
  const double share = small_share(*scheme);
  // Rounding moves a number by up to half a step, so the variance is a twelfth of the squared step. The error
  // of a weight is the difference of two such errors, on all tokens of a page.
  const double of_queries = std::min(share, std::pow(q.largest * step.of_queries, 2) / 12);
  const double of_weights = std::min(share, kPageTokens * std::pow(step.of_weights, 2) / 6);
  return std::sqrt(q.product * q.product * of_queries + of_weights);
}

}  // namespace kvant::cpu::testing
