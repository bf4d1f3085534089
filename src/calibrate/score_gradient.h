// Starts the backward pass of gradients: computes the derivative of the predictions' scores by the last
// layer's output.
//
// To second order, a small change dz of the logits costs KL(p || p') = 1/2 dz^T F dz with Fisher's
// information F = diag(p) - p p^T (Martens 2020, "New insights and perspectives on the natural gradient
// method", section 5). Let z be random signs for all words, and u = sqrt(p) z - p (sqrt(p) . z). u has mean 0
// and E u u^T = F, because F = B B^T with B = diag(sqrt(p)) - p sqrt(p)^T.
//
// Every position has signs of its own. Let g be the derivative of the sum of u . logits over all positions by
// any value inside the model. A small error e of that value then costs E (g . e)^2 / 2, summed over the
// positions. A score e_y - p of a target y drawn from p has the same moments. But if one word is nearly
// certain, such a score is almost always close to zero, and rarely large.
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
  std::vector<float> gradient;            // the derivative by x, [n, n_embd]
  std::vector<double> log_probabilities;  // [n], the log probabilities of `words`
};

// A block of the vocabulary has this many words. One matrix product computes the logits of a block.
inline constexpr int kVocabularyBlock = 2048;
// The first pass over the vocabulary keeps logits of at most this many bytes for the second pass.
inline constexpr std::int64_t kMostLogitBytes = std::int64_t{256} << 20;

// Computes the derivative. x [n, n_embd] is the residual stream after the last layer. `words` holds one word
// for each position. The signs depend only on `seed`. `products` must belong to the model, and their errors
// are returned.
Result<ScoreGradient> score_gradient(const ModelParts& model, VocabularyProducts& products,
                                     MatrixView<const float> x, std::span<const std::int32_t> words,
                                     std::uint64_t seed, int n_threads);

}  // namespace kvant
