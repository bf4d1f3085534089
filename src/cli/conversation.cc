#include "cli/conversation.h"

#include <algorithm>
#include <chrono>

#include "base/progress.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPromptStep = 512;              // tokens of a step: bounds the memory for activations
constexpr std::size_t kLongestCharacter = 4;  // bytes

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Takes from `pending` what can be printed: whole characters, and bytes that no continuation can fix.
std::string take_printable(std::string& pending, bool at_end) {
  const auto invalid = first_invalid_utf8(pending);
  std::size_t n = invalid.value_or(pending.size());
  const bool may_continue = pending.size() - n < kLongestCharacter;
  if (at_end || !may_continue) n = pending.size();
  std::string printable = pending.substr(0, n);
  pending.erase(0, n);
  return printable;
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
  return session_.engine().step(cache_, backend_, {&input, 1}, logits);
}

Status Conversation::read(std::span<const std::int32_t> tokens, const std::atomic<bool>& interrupted) {
  const int n = static_cast<int>(tokens.size());
  if (length() + n >= context_) {
    return error(
        "the prompt has {} tokens and the cache holds {}, which leaves no room to generate in a context of "
        "{}: give a larger -c or a shorter prompt",
        n, length(), context_);
  }
  Progress progress("reading the prompt", n, "tokens");
  const auto start = Clock::now();
  for (int first = 0; first < n && !interrupted; first += kPromptStep) {
    const int count = std::min(kPromptStep, n - first);
    KVANT_RETURN_IF_ERROR(step(tokens.subspan(first, count), /*is_prompt=*/true, first + count == n));
    figures_.prompt_tokens += count;
    progress.advance(count);
  }
  figures_.prompt_seconds += seconds_since(start);
  return {};
}

Result<GenerationEnd> Conversation::generate(int n, const std::atomic<bool>& interrupted,
                                             const std::function<void(const std::string&)>& print) {
  const auto start = Clock::now();
  const Tokenizer& tokenizer = session_.engine().tokenizer();
  std::string pending;
  GenerationEnd end = GenerationEnd::length;
  for (int i = 0; n < 0 || i < n; ++i) {
    if (interrupted) {
      end = GenerationEnd::interrupted;
      break;
    }
    const std::int32_t token = sampler_->pick(logits_);
    if (tokenizer.ends_generation(token)) {
      end = GenerationEnd::finished;
      break;
    }
    pending += tokenizer.piece(token);
    const std::string text = take_printable(pending, false);
    if (!text.empty()) print(text);
    ++figures_.generated_tokens;
    if (length() + 1 >= context_) {
      end = GenerationEnd::context_full;
      break;
    }
    KVANT_RETURN_IF_ERROR(step({&token, 1}, /*is_prompt=*/false, /*want_logits=*/true));
  }
  const std::string rest = take_printable(pending, true);
  if (!rest.empty()) print(rest);
  figures_.decode_seconds += seconds_since(start);
  return end;
}

void Conversation::restart() {
  cache_.free(sequence_);
  sequence_ = cache_.add();
}

}  // namespace kvant
