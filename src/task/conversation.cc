#include "task/conversation.h"

#include <chrono>

#include "base/progress.h"
#include "generate/prompt_steps.h"
#include "model/finite_logits.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPromptChunk = 512;  // tokens of a step: bounds the memory for activations

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Conversation::Conversation(const Session& session, AttentionBackend& backend,
                           std::shared_ptr<const Plan> plan, std::unique_ptr<Sampler> sampler, int context)
    : session_(session),
      backend_(backend),
      cache_(std::move(plan), /*byte_limit=*/0),
      sampler_(std::move(sampler)),
      context_(context),
      sequence_(cache_.add()),
      logits_(session.engine().n_vocab()) {}

Status Conversation::step(std::span<const std::int32_t> tokens, bool is_prompt, bool want_logits) {
  const int n = static_cast<int>(tokens.size());
  const EngineInput input{sequence_, tokens, is_prompt, want_logits ? n - 1 : n};
  const MatrixView<float> logits(logits_.data(), want_logits ? 1 : 0, session_.engine().n_vocab());
  KVANT_RETURN_IF_ERROR(session_.engine().step(cache_, backend_, {&input, 1}, logits));
  KVANT_RETURN_IF_ERROR(check_logits(session_.engine(), logits));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {};
}

Status Conversation::check_room(int n_tokens) const {
  if (length() + n_tokens < context_) return {};
  return error(
      "the prompt has {} tokens and the cache holds {}, which leaves no room to generate in a context of "
      "{}: give a larger -c or a shorter prompt",
      n_tokens, length(), context_);
}

Status Conversation::read(std::span<const std::int32_t> tokens, const std::string& text,
                          const std::atomic<bool>& interrupted) {
  const int n = static_cast<int>(tokens.size());
  KVANT_RETURN_IF_ERROR(check_room(n));
  Progress progress("reading the prompt", n, "tokens");
  const auto start = Clock::now();
  const int held = length();
  for (int first = 0; first < n && !interrupted;) {
    const int count = next_prompt_step(held + first, held + n, kPromptChunk);
    KVANT_RETURN_IF_ERROR(step(tokens.subspan(first, count), /*is_prompt=*/true, first + count == n));
    figures_.prompt_tokens += count;
    progress.advance(count);
    first += count;
  }
  figures_.prompt_seconds += seconds_since(start);
  text_ += text;
  return {};
}

void Conversation::begin_answer(GenerationOptions options) {
  answer_.emplace(session_.engine().tokenizer(), *sampler_, std::move(options));
  end_.reset();
  if (answer_->end() == GenerationEnd::length) end_ = AnswerEnd::length;  // of no tokens
  is_ahead_ = false;
  sampler_->begin(tokens_);
}

Result<GeneratedText> Conversation::next() {
  const auto start = Clock::now();
  auto shown = next_token();
  figures_.decode_seconds += seconds_since(start);
  return shown;
}

// Reads the newest token only when it is needed, so that its text is shown before.
Result<GeneratedText> Conversation::next_token() {
  KVANT_RETURN_IF_ERROR(read_answered());
  GeneratedText shown = answer_->next(logits_);
  if (answer_->end() == GenerationEnd::finished) {
    end_ = AnswerEnd::finished;
    return shown;
  }
  ++figures_.generated_tokens;
  if (length() + 1 >= context_) {
    end_ = AnswerEnd::context_full;
    if (answer_->end() == GenerationEnd::none) shown.append(answer_->cut_off());
    return shown;
  }
  is_ahead_ = true;
  if (answer_->end() == GenerationEnd::length) {
    KVANT_RETURN_IF_ERROR(read_answered());
    end_ = AnswerEnd::length;
  }
  return shown;
}

Result<GeneratedText> Conversation::interrupt() {
  KVANT_RETURN_IF_ERROR(read_answered());
  end_ = AnswerEnd::interrupted;
  return answer_->cut_off();
}

Status Conversation::read_answered() {
  if (!is_ahead_) return {};
  const std::int32_t token = answer_->token();
  KVANT_RETURN_IF_ERROR(step({&token, 1}, /*is_prompt=*/false, /*want_logits=*/true));
  text_ += session_.engine().tokenizer().piece(token);
  is_ahead_ = false;
  return {};
}

Result<AnswerEnd> Conversation::generate(int n, const std::atomic<bool>& interrupted,
                                         const std::function<void(const std::string&)>& print) {
  begin_answer({.max_tokens = n});
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
