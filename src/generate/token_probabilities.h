// The probabilities that a model gives to tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvant {

// Stands for the first token of a text, which nothing predicts.
inline constexpr double kNoProbability = std::numeric_limits<double>::quiet_NaN();

struct TokenProbability {
  std::int32_t token = 0;
  double log_probability = 0;  // natural logarithm
};

// Returns the token's log probability under softmax(logits), before temperature and truncation. logits
// [n_vocab].
double log_probability(std::span<const float> logits, std::int32_t token);

// Returns the n most likely tokens, at most n_vocab, the likeliest first; ties are ordered by token number.
std::vector<TokenProbability> likeliest_tokens(std::span<const float> logits, int n);

}  // namespace kvant
