// Generation: one answer while it is made: tokens are picked from logits and become text.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generate/text_stream.h"
#include "generate/token_probabilities.h"
#include "model/grammar.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

namespace kvant {

struct GenerationOptions {
  int max_tokens = -1;               // -1: no limit
  std::vector<std::string> stops;    // texts that end the answer
  bool wants_probabilities = false;  // of every token of the answer
  int alternatives = 0;              // with them, of that many likeliest tokens
  // Control tokens, but for these, have no part in the answer's text.
  bool hides_control_tokens = false;
  std::vector<std::int32_t> kept_tokens = {};
};

enum class GenerationEnd : std::uint8_t {
  none,      // it goes on
  finished,  // the model has ended it, or a stop text
  length,    // max_tokens
  stuck,     // its grammar allows nothing that the model can say
  lost,      // its grammar can be read in more ways than are followed
};

// What an unquantized cache would have gone on with (serve/answer_guard.h).
struct ShadowToken {
  std::int32_t token = 0;
  double kld = 0;  // of the predictions, from the shadow's, nats
};

// A token of the answer with its probabilities.
struct ReportedToken {
  TokenProbability chosen = {};
  std::vector<TokenProbability> alternatives = {};  // the likeliest first
  std::optional<ShadowToken> shadow = {};           // where there is one
  bool is_hidden = false;                           // its text is no part of the answer's
};

// A token with these logits before it. alternatives: how many.
ReportedToken reported_token(std::span<const float> logits, std::int32_t token, int alternatives);

// What one more token adds to what can be shown.
struct GeneratedText {
  std::string text;
  std::vector<ReportedToken> tokens;  // whose text is shown by now

  void append(GeneratedText more);
};

class Generation {
 public:
  // The first two outlive it. grammar: what the answer may be; null: anything.
  Generation(const Tokenizer& tokenizer, Sampler& sampler, GenerationOptions options,
             std::shared_ptr<Grammar> grammar = nullptr);

  // Picks the next token. logits [n_vocab], of the newest one. shadow: is reported with it. Requires
  // end() == none.
  GeneratedText next(std::span<const float> logits, std::optional<ShadowToken> shadow = std::nullopt);
  // Ends an answer that has no room to go on: what was held back. Before that, end() == none.
  GeneratedText cut_off();

  GenerationEnd end() const { return end_; }
  const std::string& stop() const { return text_.stop(); }  // the stop text that has ended it; empty: none
  std::int32_t token() const { return token_; }  // the newest; the model reads it if the answer goes on
  std::size_t shown_bytes() const {
    return text_.shown();
  }                                           // of its tokens' texts, with those that are hidden
  int n_tokens() const { return n_tokens_; }  // of the answer, without the one by which the model ended it

 private:
  struct Held {
    std::size_t text_end;  // bytes of the answer up to this token's
    ReportedToken token;
  };
  GeneratedText show(std::string text);
  bool pick(std::span<const float> logits);
  bool is_hidden(std::int32_t token) const;

  const Tokenizer& tokenizer_;
  Sampler& sampler_;
  GenerationOptions options_;
  std::shared_ptr<Grammar> grammar_;
  TextStream text_;
  GenerationEnd end_ = GenerationEnd::none;
  std::int32_t token_ = 0;
  int n_tokens_ = 0;
  std::size_t n_bytes_ = 0;  // of all tokens' text
  std::deque<Held> held_;    // tokens whose text is held back
};

}  // namespace kvant
