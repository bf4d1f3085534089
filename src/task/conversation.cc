#include "task/conversation.h"

#include <algorithm>
#include <chrono>

#include "base/progress.h"
#include "cache/rewindable_tokens.h"
#include "generate/ngram_draft.h"
#include "generate/prompt_steps.h"
#include "model/finite_logits.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

// A step has at most kPromptChunk tokens. The limit bounds the memory for activations.
constexpr int kPromptChunk = 512;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns how many drafted tokens a step may have. On the CPU, each row must get the bits that it would get
// in a step of its own. On a device the size of a step changes the rounding anyway, so there is no limit.
int most_verified(const Session& session, int wanted) {
  if (wanted == 0 || session.device() != nullptr) return wanted;
  return std::min(wanted, session.engine().independent_sequences() - 1);
}

}  // namespace

Conversation::Conversation(const Session& session, AttentionBackend& backend, PlacedPlan plan,
                           std::unique_ptr<Sampler> sampler, int context, int most_drafted,
                           std::shared_ptr<DraftModel> draft_model)
    : session_(session),
      backend_(backend),
      cache_(std::move(plan), /*byte_limit=*/0),
      sampler_(std::move(sampler)),
      context_(context),
      sequence_(cache_.add()),
      most_drafted_(most_verified(session, most_drafted)),
      logits_(static_cast<std::size_t>(1 + most_drafted_) * session.engine().n_vocab()),
      begins_short_(session.engine().short_rope_context() > 0),
      short_rope_(begins_short_),
      draft_model_(std::move(draft_model)),
      drafter_(new_drafter()) {}

std::unique_ptr<DraftSource> Conversation::new_drafter() const {
  if (most_drafted_ == 0) return nullptr;
  if (draft_model_ != nullptr) return DraftModel::source(draft_model_);
  return std::make_unique<NgramDraft>();
}

// The last n_logits tokens of the step get logits.
Status Conversation::step(std::span<const std::int32_t> tokens, bool is_prompt, int n_logits) {
  const EngineInput input{.sequence = sequence_,
                          .tokens = tokens,
                          .is_prompt = is_prompt,
                          .first_logits = static_cast<int>(tokens.size()) - n_logits,
                          .short_rope = short_rope_};
  const MatrixView<float> logits(logits_.data(), n_logits, session_.engine().n_vocab());
  KVANT_RETURN_IF_ERROR(session_.engine().step(cache_, backend_, {&input, 1}, logits));
  return check_logits(session_.engine(), logits);
}

Status Conversation::check_room(int n_tokens) const {
  if (length() + n_tokens < context_) return {};
  return error(
      "the prompt has {} tokens{}, which leaves no room to generate in a context of {}: give a larger -c or "
      "a "
      "shorter prompt",
      n_tokens, length() > 0 ? fmt::format(" and the cache holds {}", length()) : "", context_);
}

Status Conversation::read(std::span<const std::int32_t> tokens, const std::string& text,
                          const std::atomic<bool>& interrupted) {
  const int n = static_cast<int>(tokens.size());
  KVANT_RETURN_IF_ERROR(check_room(n));
  Progress progress("reading the prompt", n, "tokens");
  const auto start = Clock::now();
  KVANT_RETURN_IF_ERROR(outgrow_short_rope(n));
  const int held = length();
  for (int first = 0; first < n && !interrupted;) {
    const int count = next_prompt_step(held + first, held + n, kPromptChunk);
    const auto some = tokens.subspan(first, count);
    KVANT_RETURN_IF_ERROR(step(some, /*is_prompt=*/true, first + count == n ? 1 : 0));
    tokens_.insert(tokens_.end(), some.begin(), some.end());
    if (drafter_ != nullptr) drafter_->read(some);
    figures_.prompt_tokens += count;
    progress.advance(count);
    first += count;
  }
  figures_.prompt_seconds += seconds_since(start);
  text_ += text;
  return {};
}

void Conversation::begin_answer(GenerationOptions options) {
  max_tokens_ = options.max_tokens;
  answer_.emplace(session_.engine().tokenizer(), *sampler_, std::move(options));
  end_.reset();
  // A completion of 0 tokens has ended already before its first token.
  if (answer_->end() == GenerationEnd::length) end_ = AnswerEnd::length;
  is_ahead_ = false;
  sampler_->begin(tokens_);
}

Result<GeneratedText> Conversation::next() {
  const auto start = Clock::now();
  auto shown = next_token();
  figures_.decode_seconds += seconds_since(start);
  return shown;
}

// The model reads the newest token in the next call, so this call returns the token's text without waiting.
Result<GeneratedText> Conversation::next_token() {
  KVANT_RETURN_IF_ERROR(read_answered());
  const std::size_t n_vocab = session_.engine().n_vocab();
  GeneratedText shown = answer_->next(std::span(logits_).subspan(n_accepted_ * n_vocab, n_vocab));
  if (answer_->end() == GenerationEnd::finished) {
    KVANT_RETURN_IF_ERROR(end(AnswerEnd::finished));
    return shown;
  }
  ++figures_.generated_tokens;
  if (length() + 1 >= context_) {
    KVANT_RETURN_IF_ERROR(end(AnswerEnd::context_full));
    if (answer_->end() == GenerationEnd::none) shown.append(answer_->cut_off());
    return shown;
  }
  is_ahead_ = true;
  if (answer_->end() == GenerationEnd::length) {
    KVANT_RETURN_IF_ERROR(read_answered());
    KVANT_RETURN_IF_ERROR(end(AnswerEnd::length));
  }
  return shown;
}

Result<GeneratedText> Conversation::interrupt() {
  KVANT_RETURN_IF_ERROR(read_answered());
  KVANT_RETURN_IF_ERROR(end(AnswerEnd::interrupted));
  return answer_->cut_off();
}

Status Conversation::end(AnswerEnd how) {
  end_ = how;
  return drop_draft();
}

// If the token was drafted, the cache already holds it.
Status Conversation::read_answered() {
  if (!is_ahead_) return {};
  const std::int32_t token = answer_->token();
  if (drafter_ != nullptr) drafter_->generate(token);
  if (n_accepted_ < std::ssize(draft_) && draft_[n_accepted_] == token) {
    ++n_accepted_;
    ++figures_.accepted_tokens;
  } else {
    KVANT_RETURN_IF_ERROR(drop_draft());
    KVANT_RETURN_IF_ERROR(outgrow_short_rope(1));
    KVANT_RETURN_IF_ERROR(verify(token));
  }
  tokens_.push_back(token);
  text_ += session_.engine().tokenizer().piece(token);
  is_ahead_ = false;
  return {};
}

// Prepares for n_more tokens. If the sequence outgrows LongRoPE's factors for short sequences, all its tokens
// are read again with the factors for long sequences (Ding et al. 2024).
Status Conversation::outgrow_short_rope(int n_more) {
  if (!short_rope_ || length() + n_more <= session_.engine().short_rope_context()) return {};
  KVANT_RETURN_IF_ERROR(drop_draft());
  cache_.free(sequence_);
  sequence_ = cache_.add();
  short_rope_ = false;
  for (int first = 0; first < length();) {
    const int n = next_prompt_step(first, length(), kPromptChunk);
    KVANT_RETURN_IF_ERROR(step(std::span(tokens_).subspan(first, n), /*is_prompt=*/true, /*n_logits=*/0));
    first += n;
  }
  return {};
}

// Returns how many drafted tokens may follow the next token in a step. No step may pass the end of the
// context, or add more tokens than the cache can take back.
int Conversation::most_drafted() const {
  if (most_drafted_ == 0 || answer_->end() != GenerationEnd::none) return 0;
  int most = std::min({most_drafted_, rewindable_tokens(cache_, sequence_) - 1, context_ - length() - 2});
  if (max_tokens_ >= 0) most = std::min(most, max_tokens_ - answer_->n_tokens() - 1);
  if (short_rope_) most = std::min(most, session_.engine().short_rope_context() - length() - 1);
  return std::max(most, 0);
}

// Reads `token` in one step with as many drafted tokens as are likely to pay off.
Status Conversation::verify(std::int32_t token) {
  Draft draft;
  if (drafter_ != nullptr) draft = drafter_->propose(most_drafted(), pace_);
  draft.tokens.resize(pace_.choose({&draft, 1}, 1 + most_drafted_).front());
  std::vector<std::int32_t> tokens = {token};
  tokens.insert(tokens.end(), draft.tokens.begin(), draft.tokens.end());
  const int n = static_cast<int>(tokens.size());
  const auto start = Clock::now();
  KVANT_RETURN_IF_ERROR(step(tokens, /*is_prompt=*/false, n));
  // A step that ends a page also seals the page, so its time says nothing about other steps.
  if ((length() + n) % kPageTokens != 0) pace_.add(n, seconds_since(start));
  figures_.drafted_tokens += n - 1;
  draft_ = std::move(draft.tokens);
  return {};
}

// Removes from the cache the drafted tokens that follow tokens_.
Status Conversation::drop_draft() {
  if (cache_.length(sequence_) > length()) KVANT_RETURN_IF_ERROR(cache_.truncate(sequence_, length()));
  draft_.clear();
  n_accepted_ = 0;
  return {};
}

Result<AnswerEnd> Conversation::generate(GenerationOptions options, const std::atomic<bool>& interrupted,
                                         const std::function<void(const std::string&)>& print) {
  begin_answer(std::move(options));
  while (!end_) {
    const auto shown = interrupted ? interrupt() : next();
    if (!shown.ok()) return shown.error();
    if (!shown->text.empty()) print(shown->text);
  }
  return *end_;
}

void Conversation::restart() {
  cache_.free(sequence_);
  sequence_ = cache_.add();
  tokens_.clear();
  text_.clear();
  short_rope_ = begins_short_;
  drafter_ = new_drafter();
}

Status Conversation::restore(const SessionFile& file) {
  auto tokens = file.tokens();
  if (!tokens.ok()) return tokens.error();
  auto text = file.text();
  if (!text.ok()) return text.error();
  const auto sequence = import_session(cache_, file);
  if (!sequence.ok()) return sequence.error();
  cache_.free(sequence_);
  sequence_ = *sequence;
  tokens_ = std::move(*tokens);
  text_ = std::move(*text);
  drafter_ = new_drafter();
  if (drafter_ != nullptr) drafter_->read(tokens_);
  return {};
}

Status Conversation::save(const std::string& path, const SessionIdentity& identity,
                          const SequenceCoder* coder) const {
  auto sequence = cache_.export_sequence(sequence_);
  if (!sequence.ok()) return sequence.error();
  const auto written = write_session(path, identity, {tokens_, text_, std::move(*sequence)}, coder);
  return written.ok() ? Status() : written.error();
}

}  // namespace kvant
