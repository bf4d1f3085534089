// Defines AttentionContender, a row of the attention benchmark: kvant or libkvant_cpu with a recipe, or ggml
// with a cache type. A contender attends over the caches of several layers in turn, as a model's decode step
// does. Each layer's bytes therefore come from memory, even if the processor's caches could hold one layer
// between runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

struct AttentionHeads {
  int n_heads = 32;    // query heads
  int n_kv_heads = 8;  // KV heads, a divisor of n_heads
  int head_dim = 128;
};

// Returns an error if query heads do not share KV heads evenly. resolve() (recipe/plan.h) checks head sizes.
Status check_shape(const AttentionHeads& shape);

// Holds the values that one layer of a contender attends over.
struct AttentionValues {
  std::vector<float> q;  // query of the new token, [n_heads * head_dim]
  // The rows of one page, [kPageTokens, n_kv_heads * head_dim], are repeated for all tokens.
  std::vector<float> k, v;
};

// Returns independent, normally distributed values. Scores are then normally distributed, too, and the
// softmax is flat, so no kernel can gain by skipping values.
AttentionValues random_attention_values(const AttentionHeads& shape, std::uint64_t seed);

class AttentionContender {
 public:
  virtual ~AttentionContender() = default;
  // Attends with one new token over all layers in turn, and forgets the token. Returns the seconds per layer.
  virtual Result<double> layer_seconds() = 0;
  // Returns how many bytes of cache layer_seconds() reads per layer.
  virtual double layer_bytes() const = 0;
  // Returns the cache's bits per number of K and V.
  virtual double bits() const = 0;
  virtual int n_layers() const = 0;
  // Returns the names of the kernels that run, such as "reference" and "ggml/flash". Each name occurs once.
  virtual std::vector<std::string> kernels() const = 0;
};

// Returns how many layers with layer_bytes bytes each fill working_set bytes. The result is at least `least`,
// and otherwise at most 64, the depth of deep models.
int rotation_layers(double layer_bytes, std::int64_t working_set, int least);

}  // namespace kvant
