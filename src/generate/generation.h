// A Generation produces one completion: it chooses tokens from logits and turns them into text.
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
  int max_tokens = -1;               // -1 means no limit
  std::vector<std::string> stops;    // texts that end the completion
  bool wants_probabilities = false;  // the report has the probability of every token of the completion
  int alternatives = 0;              // the report also has this many of the likeliest tokens at each position
  // Control tokens are left out of the completion's text, except the tokens in kept_tokens.
  bool hides_control_tokens = false;
  std::vector<std::int32_t> kept_tokens = {};
};

enum class GenerationEnd : std::uint8_t {
  none,      // generation continues
  finished,  // the model or a stop text ended the completion
  length,    // the completion has max_tokens tokens
  stuck,     // the grammar allows no token that the model can produce
  lost,      // the grammar has more parses than the matcher tracks
};

// ShadowToken is the token that an unquantized cache would have chosen at the same position
// (serve/answer_guard.h).
struct ShadowToken {
  std::int32_t token = 0;
  double kld = 0;  // nats; the divergence of the completion's prediction from the unquantized one
};

// ReportedToken is a token of the completion with its probabilities.
struct ReportedToken {
  TokenProbability chosen = {};
  std::vector<TokenProbability> alternatives = {};  // the likeliest token comes first
  std::optional<ShadowToken> shadow = {};           // empty if there is no shadow
  bool is_hidden = false;                           // the token's text is not shown
};

// Builds the report of `token`, which was chosen from `logits`. The report also has the probabilities of the
// `alternatives` likeliest tokens.
ReportedToken reported_token(std::span<const float> logits, std::int32_t token, int alternatives);

// GeneratedText holds the text that can be shown after one more generated token, and the tokens of this text.
struct GeneratedText {
  std::string text;
  std::vector<ReportedToken> tokens;  // tokens whose text is visible now

  void append(GeneratedText more);
};

class Generation {
 public:
  // `tokenizer` and `sampler` must outlive the object. `grammar` restricts the completion; null means no
  // restriction.
  Generation(const Tokenizer& tokenizer, Sampler& sampler, GenerationOptions options,
             std::shared_ptr<Grammar> grammar = nullptr);

  // Chooses the next token. logits [n_vocab] are the prediction after the newest token. The report of the
  // token contains `shadow`. Requires end() == none.
  GeneratedText next(std::span<const float> logits, std::optional<ShadowToken> shadow = std::nullopt);
  // Ends a completion that cannot continue because the context is full. Returns the text that was held back.
  // Requires end() == none.
  GeneratedText cut_off();

  GenerationEnd end() const { return end_; }
  // Returns the stop text that ended the completion, or an empty string if no stop text did.
  const std::string& stop() const { return text_.stop(); }
  // Returns the newest token, which the model reads next if the completion continues.
  std::int32_t token() const { return token_; }
  // Returns how many bytes of text were shown or hidden so far.
  std::size_t shown_bytes() const { return text_.shown(); }
  // Returns the number of the completion's tokens, without the token by which the model ended it.
  int n_tokens() const { return n_tokens_; }

 private:
  struct Held {
    std::size_t text_end;  // the end of the token's bytes in the completion
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
