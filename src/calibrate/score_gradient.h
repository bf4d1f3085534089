// ScoreGradient: where the derivative of a model's predictions begins.
//
// To second order a small change dz of the logits costs KL(p || p') = 1/2 dz^T F dz, F = diag(p) - p p^T
// (Fisher's information; Martens 2020, "New insights and perspectives on the natural gradient method",
// section 5). With signs z drawn for all words, u = sqrt(p) z - p (sqrt(p) . z) has the mean 0 and E u u^T =
// F: F = B B^T with B = diag(sqrt(p)) - p sqrt(p)^T. So where positions have signs of their own, and g is the
// derivative of the sum of all u . logits by anything inside the model, E (g . e)^2 / 2 is what a small error
// e of that thing costs, summed over the positions. A score e_y - p of a target y drawn from p has these
// moments, too; but where one word is nearly certain, it is nearly always next to nothing and now and then
// large.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/result.h"
#include "calibrate/vocabulary_products.h"
#include "model/model_parts.h"

namespace kvant {

struct ScoreGradient {
  std::vector<float> gradient;            // by x, [n, n_embd]
  std::vector<double> log_probabilities;  // [n]: of `words`
};

// Words that are multiplied at once.
inline constexpr int kVocabularyBlock = 2048;
// The logits that are kept from the first reading of the vocabulary to the second.
inline constexpr std::int64_t kMostLogitBytes = std::int64_t{256} << 20;

// x [n, n_embd]: the residual stream after the last layer; words: one for each of its positions. The signs
// depend on `seed` alone. products: of the model. Errors: theirs.
Result<ScoreGradient> score_gradient(const ModelParts& model, VocabularyProducts& products,
                                     MatrixView<const float> x, std::span<const std::int32_t> words,
                                     std::uint64_t seed, int n_threads);

}  // namespace kvant
