// The probabilities that a model gives to tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvant {

// Of the first token of a text, before which there is nothing.
inline constexpr double kNoProbability = std::numeric_limits<double>::quiet_NaN();

struct TokenProbability {
  std::int32_t token = 0;
  double log_probability = 0;  // natural logarithm
};

// The token's log probability under softmax(logits): before temperature and cuts. logits [n_vocab].
double log_probability(std::span<const float> logits, std::int32_t token);

// The n most likely tokens, the likeliest first, of equals the one with the lower number; at most n_vocab.
std::vector<TokenProbability> likeliest_tokens(std::span<const float> logits, int n);

}  // namespace kvant
