// Sampler picks the next token from logits.
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

// Added to the logit of a token. With -infinity, the token is drawn only if there is no other.
struct TokenBias {
  std::int32_t token = 0;
  float bias = 0;
};

struct SamplerOptions {
  float temperature = 0;   // 0: the most likely token, always
  int top_k = 40;          // keeps only the k most likely tokens; 0: all
  float top_p = 0.95F;     // keeps the smallest set of tokens with at least this probability; 1: all
  float min_p = 0.05F;     // keeps tokens at least this likely relative to the most likely one; 0: all
  std::uint32_t seed = 0;  // the same seed and logits give the same tokens
  float typical_p =
      1;  // keeps the tokens whose surprise is nearest to the expected one, up to this probability; 1: all
  float top_n_sigma = 0;  // keeps logits within this many standard deviations of the largest one; 0: all
  // XTC (exclude top choices): with this probability, only the least likely of the tokens above the threshold
  // stays.
  float xtc_probability = 0;
  float xtc_threshold = 0.1F;
  // The temperature follows the entropy within this distance of `temperature`.
  float dynatemp_range = 0;
  float dynatemp_exponent = 1;
  PenaltyOptions penalties = {};
  std::vector<TokenBias> bias = {};  // in any order; biases of one token add up
};

class Grammar;

class Sampler {
 public:
  // Error: a value is out of range.
  static Result<std::unique_ptr<Sampler>> make(const SamplerOptions& options);
  ~Sampler();

  // Starts a completion of this prompt; penalties start anew.
  void begin(std::span<const std::int32_t> prompt) { penalties_.begin(prompt); }
  // Takes the completion's next token. A picked token is not accepted by itself.
  void accept(std::int32_t token) { penalties_.accept(token); }

  // Picks a token from logits [n_vocab].
  std::int32_t pick(std::span<const float> logits);
  // Picks a token that the grammar allows; -1: there is none. If it allows the choice of pick(logits), that
  // token stays.
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
  std::vector<float> logits_;  // [n_vocab], with bias and penalties
  std::unique_ptr<Candidates> candidates_;
};

}  // namespace kvant
