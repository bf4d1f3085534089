#include "generate/generation.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace kvant {

void GeneratedText::append(GeneratedText more) {
  text += more.text;
  std::move(more.tokens.begin(), more.tokens.end(), std::back_inserter(tokens));
}

ReportedToken reported_token(std::span<const float> logits, std::int32_t token, int alternatives) {
  ReportedToken reported{.chosen = {token, log_probability(logits, token)}};
  if (alternatives > 0) reported.alternatives = likeliest_tokens(logits, alternatives);
  return reported;
}

Generation::Generation(const Tokenizer& tokenizer, Sampler& sampler, GenerationOptions options,
                       std::shared_ptr<Grammar> grammar)
    : tokenizer_(tokenizer),
      sampler_(sampler),
      options_(std::move(options)),
      grammar_(std::move(grammar)),
      text_(options_.stops) {
  if (options_.max_tokens == 0) end_ = GenerationEnd::length;
}

GeneratedText Generation::next(std::span<const float> logits, std::optional<ShadowToken> shadow) {
  KVANT_CHECK(end_ == GenerationEnd::none, "a token after the end");
  if (!pick(logits)) {
    end_ = grammar_->is_exhausted() ? GenerationEnd::lost : GenerationEnd::stuck;
    return show(text_.finish());
  }
  sampler_.accept(token_);
  if (tokenizer_.ends_generation(token_)) {
    end_ = GenerationEnd::finished;
    return show(text_.finish());
  }
  ++n_tokens_;
  const std::string piece = tokenizer_.piece(token_);
  n_bytes_ += piece.size();
  if (options_.wants_probabilities) {
    held_.push_back({n_bytes_, reported_token(logits, token_, options_.alternatives)});
    held_.back().token.shadow = shadow;
    held_.back().token.is_hidden = is_hidden(token_);
  }
  std::string text = text_.add(piece, is_hidden(token_));
  if (text_.stopped()) {
    end_ = GenerationEnd::finished;
  } else if (n_tokens_ == options_.max_tokens) {
    end_ = GenerationEnd::length;
    text += text_.finish();
  }
  return show(std::move(text));
}

bool Generation::is_hidden(std::int32_t token) const {
  return options_.hides_control_tokens && tokenizer_.is_control(token) &&
         std::ranges::find(options_.kept_tokens, token) == options_.kept_tokens.end();
}

// Chooses the next token. Returns false if the grammar allows no token.
bool Generation::pick(std::span<const float> logits) {
  if (grammar_ == nullptr) {
    token_ = sampler_.pick(logits);
    return true;
  }
  token_ = sampler_.pick(logits, *grammar_);
  return token_ >= 0 && grammar_->accept(token_).ok();
}

GeneratedText Generation::cut_off() {
  KVANT_CHECK(end_ == GenerationEnd::none, "an answer that has ended already");
  end_ = GenerationEnd::length;
  return show(text_.finish());
}

GeneratedText Generation::show(std::string text) {
  GeneratedText shown{std::move(text), {}};
  while (!held_.empty() && held_.front().text_end <= text_.shown()) {
    shown.tokens.push_back(std::move(held_.front().token));
    held_.pop_front();
  }
  return shown;
}

}  // namespace kvant
