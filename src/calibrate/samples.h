// Samples: the token sequences that a model reads for calibration.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/engine.h"

namespace kvant {

struct Sample {
  std::vector<std::int32_t> tokens;
  // Is added to the positions of all tokens but the first kSinkTokens. Short samples then show K as it is far
  // from the start of a long context, whose sink stays at the start.
  int position_offset = 0;
};

struct SampleSize {
  int samples = 0;   // for training
  int passages = 0;  // for evaluation
  int length = 0;    // tokens of each sample and passage
  int contexts = 0;  // long samples, which come last
  int context_length = 0;
  std::uint64_t seed = 0;
};

// Takes pieces of `text` from random places spread over it. Those for training avoid the passages if the text
// is long enough. They begin with the model's BOS if it was trained with one. Offsets are random, spread over
// [0, trained_context - length]. Errors: the text is not UTF-8, or too short.
Result<std::vector<Sample>> samples_of_text(const Tokenizer& tokenizer, int trained_context,
                                            const std::string& text, const SampleSize& size);

// Cuts samples out of a text's tokens, without any that a tokenizer adds. bos: the token that texts begin
// with for the model, or -1. Errors: too few tokens.
Result<std::vector<Sample>> samples_of_tokens(std::span<const std::int32_t> tokens, std::int32_t bos,
                                              int trained_context, const SampleSize& size);

// Returns the offsets of such samples, whatever their text.
std::vector<int> position_offsets(const SampleSize& size, int trained_context);

std::int64_t written_tokens(const SampleSize& size);

// Lets the model generate the samples itself, all of them together at temperature 1. advance(n) is
// called after n more tokens of one sample; the sum is written_tokens(size). Errors: out of memory, or
// "interrupted" once `stop` is set (null: never).
Result<std::vector<Sample>> samples_of_model(Engine& engine, AttentionBackend& backend,
                                             const SampleSize& size,
                                             const std::function<void(std::int64_t)>& advance,
                                             const std::atomic<bool>* stop);

}  // namespace kvant
