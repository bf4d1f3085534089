// AttentionContender: one row of the attention benchmark, kvant with a recipe or ggml with a cache type.
//
// A contender holds the caches of several layers and attends over them one after another, as a model's decode
// step does. So a layer's bytes come from memory, even if one layer alone would stay in the processor's
// caches between runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

struct AttentionHeads {
  int n_heads = 32;    // query heads
  int n_kv_heads = 8;  // divides n_heads
  int head_dim = 128;
};

// Returns an error if query heads don't share KV heads evenly. Head sizes are checked where a plan is
// resolved.
Status check_shape(const AttentionHeads& shape);

// The values that one layer of a contender attends over.
struct AttentionValues {
  std::vector<float> q;     // [n_heads * head_dim]: the new token
  std::vector<float> k, v;  // [kPageTokens, n_kv_heads * head_dim]: repeated for all tokens
};

// Independent, normally distributed values. Scores are then normally distributed as well and the softmax is
// flat, so nothing is worth skipping.
AttentionValues random_attention_values(const AttentionHeads& shape, std::uint64_t seed);

class AttentionContender {
 public:
  virtual ~AttentionContender() = default;
  // Attends with one new token over all layers, one after another, and forgets the token. Returns seconds per
  // layer.
  virtual Result<double> layer_seconds() = 0;
  // Bytes of cache per layer that layer_seconds() reads.
  virtual double layer_bytes() const = 0;
  // Cache bits per element of K and V.
  virtual double bits() const = 0;
  virtual int n_layers() const = 0;
  // The kernels that run, each named once: "reference", "ggml".
  virtual std::vector<std::string> kernels() const = 0;
};

// Returns how many layers of layer_bytes fill working_set bytes: at least `least`, and at most as many as
// deep models have.
int rotation_layers(double layer_bytes, std::int64_t working_set, int least);

}  // namespace kvant
