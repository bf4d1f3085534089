// AttentionContender: one row of the attention benchmark, kvant with a recipe or ggml with a cache type.
//
// A contender holds the cache of several layers and attends over one after another, as a model's decode
// does: a layer's bytes then come from memory, even where one layer's alone would stay in the processor's
// caches from run to run.
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

// An error when query heads don't share KV heads evenly. Head sizes are checked where a plan is resolved.
Status check_shape(const AttentionHeads& shape);

// What one layer of a contender attends over.
struct AttentionValues {
  std::vector<float> q;     // [n_heads * head_dim], of the new token
  std::vector<float> k, v;  // [kPageTokens, n_kv_heads * head_dim]: of all tokens, again and again
};

// Independent, normally distributed values. Scores then are so as well, and the softmax is flat: nothing is
// worth skipping.
AttentionValues random_attention_values(const AttentionHeads& shape, std::uint64_t seed);

class AttentionContender {
 public:
  virtual ~AttentionContender() = default;
  // Attends with one new token over all layers, one after another, and forgets the token. Seconds a layer.
  virtual Result<double> layer_seconds() = 0;
  // Bytes of cache that this reads, a layer.
  virtual double layer_bytes() const = 0;
  // Bits of cache for each element of K and V.
  virtual double bits() const = 0;
  virtual int n_layers() const = 0;
  // What runs, each once: "reference", "ggml".
  virtual std::vector<std::string> kernels() const = 0;
};

// How many layers of layer_bytes fill working_set bytes, at most as many as deep models have; at least
// `least`.
int rotation_layers(double layer_bytes, std::int64_t working_set, int least);

}  // namespace kvant
