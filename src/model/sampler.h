// Sampler: picks the next token from logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

struct llama_sampler;
struct llama_token_data_array;

namespace kvant {

struct SamplerOptions {
  float temperature = 0;   // 0: the most likely token, always
  int top_k = 40;          // only the k most likely tokens; 0: all
  float top_p = 0.95F;     // the smallest set of tokens with at least this probability; 1: all
  float min_p = 0.05F;     // tokens at least this likely relative to the most likely one; 0: all
  std::uint32_t seed = 0;  // the same seed and logits give the same tokens
};

class Grammar;

class Sampler {
 public:
  // Errors: a value out of its range.
  static Result<std::unique_ptr<Sampler>> make(const SamplerOptions& options);
  ~Sampler();

  // logits [n_vocab].
  std::int32_t pick(std::span<const float> logits);
  // A token that the grammar allows; -1: there is none. One that pick() would have taken stays.
  std::int32_t pick(std::span<const float> logits, const Grammar& grammar);

 private:
  explicit Sampler(llama_sampler* chain);
  struct Candidates;
  llama_token_data_array candidates(std::span<const float> logits);
  std::int32_t draw(llama_token_data_array candidates);
  llama_sampler* chain_;
  std::unique_ptr<Candidates> candidates_;
};

}  // namespace kvant
