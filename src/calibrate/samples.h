// Makes the samples that a model reads for calibration. Samples are sequences of tokens from a text, or from
// the model itself. Samples begin at random offsets within the trained context, because K after RoPE depends
// on the position.
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
  // The offset is added to the positions of all tokens except the first kSinkTokens. In short samples, K then
  // has the values of a position far into a long context, while the sink stays at the start.
  int position_offset = 0;
};

struct SampleSize {
  int samples = 0;   // samples for training
  int passages = 0;  // samples for evaluation
  int length = 0;    // tokens of each sample and passage
  int contexts = 0;  // long samples, which come last
  int context_length = 0;
  std::uint64_t seed = 0;
};

// Takes pieces of `text` from random places that are spread over the text. Pieces for training avoid the
// passages if the text is long enough. Samples begin with the model's BOS if the model was trained with one.
// Offsets are random, and spread over [0, trained_context - length]. Returns an error if the text is not
// UTF-8 or too short.
Result<std::vector<Sample>> samples_of_text(const Tokenizer& tokenizer, int trained_context,
                                            const std::string& text, const SampleSize& size);

// Cuts samples out of the tokens of a text, which must not contain tokens that a tokenizer adds. `bos` is the
// model's token for the start of a text, or -1. Returns an error if there are too few tokens.
Result<std::vector<Sample>> samples_of_tokens(std::span<const std::int32_t> tokens, std::int32_t bos,
                                              int trained_context, const SampleSize& size);

// Returns the position offsets of all samples, which do not depend on the text.
std::vector<int> position_offsets(const SampleSize& size, int trained_context);

std::int64_t written_tokens(const SampleSize& size);

// Lets the model generate the samples at temperature 1, all samples of one kind at the same time. advance(n)
// is called after n more tokens, and the sum of all n is written_tokens(size). Returns an error if memory is
// exhausted, and "interrupted" once `stop` is true (null means never).
Result<std::vector<Sample>> samples_of_model(Engine& engine, AttentionBackend& backend,
                                             const SampleSize& size,
                                             const std::function<void(std::int64_t)>& advance,
                                             const std::atomic<bool>* stop);

}  // namespace kvant
