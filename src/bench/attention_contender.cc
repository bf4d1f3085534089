#include "bench/attention_contender.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/geometry.h"

namespace kvant {

Status check_shape(const AttentionHeads& shape) {
  if (shape.n_heads % shape.n_kv_heads != 0) {
    return error("{} query heads cannot share {} KV heads evenly: let --heads be a multiple of --kv-heads",
                 shape.n_heads, shape.n_kv_heads);
  }
  return {};
}

AttentionValues random_attention_values(const AttentionHeads& shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto drawn = [&](std::size_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = normal(random);
    return values;
  };
  const auto d = static_cast<std::size_t>(shape.head_dim);
  const std::size_t page = kPageTokens * shape.n_kv_heads * d;
  return {drawn(shape.n_heads * d), drawn(page), drawn(page)};
}

int rotation_layers(double layer_bytes, std::int64_t working_set, int least) {
  constexpr double kDeepModel = 64;
  const double wanted = std::ceil(static_cast<double>(working_set) / layer_bytes);
  return std::max(least, static_cast<int>(std::min(wanted, kDeepModel)));
}

}  // namespace kvant
