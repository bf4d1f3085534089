// Computes the probabilities that a model gives to tokens. The probabilities precede temperature and cuts,
// because APIs report probabilities of the unchanged model.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvant {

// The first token of a text has this value, because nothing predicts it.
inline constexpr double kNoProbability = std::numeric_limits<double>::quiet_NaN();

struct TokenProbability {
  std::int32_t token = 0;
  double log_probability = 0;  // the natural logarithm
};

// Returns the logarithm of the token's probability under softmax(logits), before temperature and cuts. The
// logits are [n_vocab].
double log_probability(std::span<const float> logits, std::int32_t token);

// Returns the n likeliest tokens (at most n_vocab), the likeliest first. Equally likely tokens are in the
// order of their numbers.
std::vector<TokenProbability> likeliest_tokens(std::span<const float> logits, int n);

}  // namespace kvant
