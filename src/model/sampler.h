// Sampler chooses the next token from logits, with llama.cpp's samplers. Biases and penalties change the
// logits before the samplers see them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/token_penalties.h"

struct llama_sampler;
struct llama_token_data_array;

namespace kvant {

// TokenBias is a number that is added to the logit of a token. With -infinity, the token is drawn only if all
// other tokens have that bias, too.
struct TokenBias {
  std::int32_t token = 0;
  float bias = 0;
};

struct SamplerOptions {
  float temperature = 0;   // below 1e-30, the likeliest token is always chosen
  int top_k = 40;          // keeps only the k likeliest tokens; 0 keeps all
  float top_p = 0.95F;     // keeps the smallest set of likeliest tokens with at least this probability; 1:
                           // all
  float min_p = 0.05F;     // keeps tokens at least this likely relative to the likeliest one; 0 keeps all
  std::uint32_t seed = 0;  // the same seed and logits give the same tokens
  // Only tokens whose surprise is nearest to the entropy are kept, up to this probability in total. 1 keeps
  // all tokens.
  float typical_p = 1;
  float top_n_sigma = 0;  // keeps logits within this many standard deviations of the largest one; 0 keeps all
  // XTC (exclude top choices) drops, with xtc_probability, all tokens above the threshold except the least
  // likely of them.
  float xtc_probability = 0;
  float xtc_threshold = 0.1F;
  // The temperature varies within this distance of `temperature`, and grows with the entropy of the
  // prediction.
  float dynatemp_range = 0;
  float dynatemp_exponent = 1;
  PenaltyOptions penalties = {};
  std::vector<TokenBias> bias = {};  // the order does not matter; biases of one token add up
};

class Grammar;

class Sampler {
 public:
  // Returns an error if a value is out of range.
  static Result<std::unique_ptr<Sampler>> make(const SamplerOptions& options);
  ~Sampler();

  // Starts a completion of this prompt, and resets the counts for penalties.
  void begin(std::span<const std::int32_t> prompt) { penalties_.begin(prompt); }
  // Takes the completion's next token. pick() alone does not count a token.
  void accept(std::int32_t token) { penalties_.accept(token); }

  // Chooses a token from logits [n_vocab].
  std::int32_t pick(std::span<const float> logits);
  // Chooses a token that the grammar allows, or returns -1 if there is none. If the grammar allows the choice
  // of pick(logits), that choice stays.
  std::int32_t pick(std::span<const float> logits, const Grammar& grammar);

 private:
  Sampler(llama_sampler* chain, const SamplerOptions& options);
  struct Candidates;
  std::span<const float> biased(std::span<const float> logits);
  llama_token_data_array candidates(std::span<const float> logits);
  llama_token_data_array allowed(std::span<const float> logits, const Grammar& grammar);
  std::int32_t draw(llama_token_data_array candidates);
  llama_sampler* chain_;
  bool has_penalties_;
  TokenPenalties penalties_;
  std::vector<TokenBias> bias_;
  std::vector<float> logits_;  // [n_vocab], with biases and penalties
  std::unique_ptr<Candidates> candidates_;
};

}  // namespace kvant
