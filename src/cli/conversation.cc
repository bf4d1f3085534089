#include "cli/conversation.h"

#include <chrono>

#include "base/progress.h"
#include "generate/prompt_steps.h"
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
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {};
}

Status Conversation::read(std::span<const std::int32_t> tokens, const std::string& text,
                          const std::atomic<bool>& interrupted) {
  const int n = static_cast<int>(tokens.size());
  if (length() + n >= context_) {
    return error(
        "the prompt has {} tokens and the cache holds {}, which leaves no room to generate in a context of "
        "{}: give a larger -c or a shorter prompt",
        n, length(), context_);
  }
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

Result<AnswerEnd> Conversation::generate(int n, const std::atomic<bool>& interrupted,
                                         const std::function<void(const std::string&)>& print) {
  const auto start = Clock::now();
  Generation generation(session_.engine().tokenizer(), *sampler_, {.max_tokens = n});
  const auto show = [&](const GeneratedText& shown) {
    if (!shown.text.empty()) print(shown.text);
  };
  AnswerEnd end = AnswerEnd::length;
  while (generation.end() == GenerationEnd::none) {
    if (interrupted) {
      end = AnswerEnd::interrupted;
      break;
    }
    show(generation.next(logits_));
    if (generation.end() == GenerationEnd::finished) {
      end = AnswerEnd::finished;
      break;
    }
    ++figures_.generated_tokens;
    if (length() + 1 >= context_) {
      end = AnswerEnd::context_full;
      break;
    }
    const std::int32_t token = generation.token();
    KVANT_RETURN_IF_ERROR(step({&token, 1}, /*is_prompt=*/false, /*want_logits=*/true));
    text_ += session_.engine().tokenizer().piece(token);
  }
  if (generation.end() == GenerationEnd::none) show(generation.cut_off());
  figures_.decode_seconds += seconds_since(start);
  return end;
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

Status Conversation::save(const std::string& path, const SessionIdentity& identity) const {
  auto sequence = cache_.export_sequence(sequence_);
  if (!sequence.ok()) return sequence.error();
  return write_session(path, identity, {tokens_, text_, std::move(*sequence)});
}

}  // namespace kvant
