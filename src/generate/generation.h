// Generation: one answer while it is generated; tokens are picked from logits and become text.
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
  bool wants_probabilities = false;  // report the probability of every token of the answer
  int alternatives = 0;              // also report this many of the likeliest tokens at each position
  // Control tokens other than kept_tokens are left out of the answer's text.
  bool hides_control_tokens = false;
  std::vector<std::int32_t> kept_tokens = {};
};

enum class GenerationEnd : std::uint8_t {
  none,      // generation continues
  finished,  // the model ended it, or a stop text did
  length,    // max_tokens
  stuck,     // the grammar allows no token that the model can produce
  lost,      // the grammar has more parses than are tracked
};

// The token that an unquantized cache would have chosen (serve/answer_guard.h).
struct ShadowToken {
  std::int32_t token = 0;
  double kld = 0;  // divergence of the predictions from the shadow's, nats
};

// A token of the answer with its probabilities.
struct ReportedToken {
  TokenProbability chosen = {};
  std::vector<TokenProbability> alternatives = {};  // the likeliest first
  std::optional<ShadowToken> shadow = {};           // empty: there is no shadow
  bool is_hidden = false;                           // its text is not shown
};

// Builds the report of a token that was picked from these logits. alternatives: how many to report.
ReportedToken reported_token(std::span<const float> logits, std::int32_t token, int alternatives);

// Text and tokens that become visible with one more token.
struct GeneratedText {
  std::string text;
  std::vector<ReportedToken> tokens;  // tokens whose text is now visible

  void append(GeneratedText more);
};

class Generation {
 public:
  // tokenizer and sampler must outlive it. grammar: constrains the answer; null: no constraint.
  Generation(const Tokenizer& tokenizer, Sampler& sampler, GenerationOptions options,
             std::shared_ptr<Grammar> grammar = nullptr);

  // Picks the next token. logits [n_vocab]: predictions after the newest token. shadow: is reported with the
  // token. Requires end() == none.
  GeneratedText next(std::span<const float> logits, std::optional<ShadowToken> shadow = std::nullopt);
  // Ends an answer that has no room to go on, and returns the text that was held back. Requires end() ==
  // none.
  GeneratedText cut_off();

  GenerationEnd end() const { return end_; }
  const std::string& stop() const { return text_.stop(); }  // the stop text that ended it; empty: none
  std::int32_t token() const { return token_; }  // the newest token; the model reads it if the answer goes on
  std::size_t shown_bytes() const {
    return text_.shown();
  }  // bytes of its tokens' texts, including hidden ones
  // tokens of the answer, without the one by which the model ended it
  int n_tokens() const { return n_tokens_; }

 private:
  struct Held {
    std::size_t text_end;  // end of this token's bytes in the answer
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
  std::size_t n_bytes_ = 0;  // bytes of all tokens' text
  std::deque<Held> held_;    // tokens whose text is held back
};

}  // namespace kvant
