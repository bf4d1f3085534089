// Makes prompts for tests. random_tokens() returns n random tokens of the tiny model's vocabulary.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "model/tiny_model.h"

namespace kvant::testing {

inline std::vector<std::int32_t> random_tokens(int n, int seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int32_t> token(3, TinyModelWriter::kVocabulary - 1);
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& t : tokens) t = token(random);
  return tokens;
}

}  // namespace kvant::testing
