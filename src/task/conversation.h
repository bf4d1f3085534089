// A Conversation is one sequence in a cache. A conversation reads prompts, generates completions with or
// without drafts, and counts tokens and seconds. `kvant run` and the Python package use this class.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generate/draft_model.h"
#include "generate/generation.h"
#include "generate/speculation_pace.h"
#include "session/session_file.h"
#include "task/session.h"

namespace kvant {

struct ConversationFigures {
  int prompt_tokens = 0;
  int generated_tokens = 0;
  double prompt_seconds = 0;
  double decode_seconds = 0;
  // drafted_tokens counts the drafted tokens that steps have verified. accepted_tokens counts the drafted
  // tokens that were right.
  int drafted_tokens = 0;
  int accepted_tokens = 0;
  double prompt_tps() const { return prompt_seconds > 0 ? prompt_tokens / prompt_seconds : 0; }
  double acceptance() const {
    return drafted_tokens > 0 ? static_cast<double>(accepted_tokens) / drafted_tokens : 0;
  }
  double decode_tps() const { return decode_seconds > 0 ? generated_tokens / decode_seconds : 0; }
};

enum class AnswerEnd : std::uint8_t { finished, length, context_full, interrupted };

class Conversation {
 public:
  // `context` is the largest number of tokens in the sequence. `session` and `backend` must outlive the
  // conversation. A step may verify up to most_drafted tokens in addition to the newest token; 0 disables
  // drafts. On the CPU, drafts change no bit of a completion. Drafts come from draft_model, or are looked up
  // in the sequence if draft_model is null.
  Conversation(const Session& session, AttentionBackend& backend, PlacedPlan plan,
               std::unique_ptr<Sampler> sampler, int context, int most_drafted = 0,
               std::shared_ptr<DraftModel> draft_model = nullptr);

  // Returns an error if the context lacks room for n_tokens more tokens and the first token of a completion.
  // The error names the tokens of the prompt, the tokens in the cache and the context.
  Status check_room(int n_tokens) const;
  // Reads `tokens`, whose text is `text`. If there are many tokens, the function shows a progress bar.
  // Returns an error if the tokens do not fit into the context.
  Status read(std::span<const std::int32_t> tokens, const std::string& text,
              const std::atomic<bool>& interrupted);
  // Begins a completion after the tokens that the last read() has read. This read() must have succeeded
  // without an interruption.
  void begin_answer(GenerationOptions options);
  // Generates one more token and returns the text that can be shown now. The completion must not have ended.
  Result<GeneratedText> next();
  // Ends the completion and returns the text that was held back. The completion must not have ended.
  Result<GeneratedText> interrupt();
  // Returns how the completion ended, or nothing if it has not ended.
  std::optional<AnswerEnd> answer_end() const { return end_; }
  const Generation& answer() const { return *answer_; }

  // Generates a whole completion. `print` receives text as soon as the text consists of whole UTF-8
  // characters.
  Result<AnswerEnd> generate(GenerationOptions options, const std::atomic<bool>& interrupted,
                             const std::function<void(const std::string&)>& print);
  // Uses LongRoPE's factors for long sequences from the first token on. A sequence that is kept in a file or
  // watched by a guard must use the long factors, because the sequence cannot be read again. Other sequences
  // begin with the factors for short sequences. A sequence that outgrows these factors is read again.
  void use_long_rope() { short_rope_ = begins_short_ = false; }
  // Forgets the sequence but keeps the figures.
  void restart();

  // Replaces the sequence by the content of a file. Returns an error if the file is unsuitable or memory is
  // too short. After an error the conversation is unchanged.
  Status restore(const SessionFile& file);
  // Writes the sequence to a file. The last read() must not have been interrupted. write_session() describes
  // `coder` and the errors.
  Status save(const std::string& path, const SessionIdentity& identity,
              const SequenceCoder* coder = nullptr) const;

  int length() const { return static_cast<int>(tokens_.size()); }
  CacheBytes bytes() const { return cache_.bytes(sequence_); }
  const ConversationFigures& figures() const { return figures_; }

 private:
  std::unique_ptr<DraftSource> new_drafter() const;
  Status step(std::span<const std::int32_t> tokens, bool is_prompt, int n_logits);
  Status outgrow_short_rope(int n_more);
  Status read_answered();
  Status verify(std::int32_t token);
  int most_drafted() const;
  Status drop_draft();
  Status end(AnswerEnd how);
  Result<GeneratedText> next_token();

  const Session& session_;
  AttentionBackend& backend_;
  Cache cache_;
  std::unique_ptr<Sampler> sampler_;
  int context_;
  SequenceId sequence_;
  // Holds the tokens of the sequence.
  std::vector<std::int32_t> tokens_;
  // Holds the text of tokens_.
  std::string text_;
  int most_drafted_;
  std::vector<float> logits_;  // [1 + most_drafted_, n_vocab], for the newest tokens
  std::optional<Generation> answer_;
  std::optional<AnswerEnd> end_;
  // The flag is true if sequences begin with LongRoPE's factors for short sequences.
  bool begins_short_;
  // The flag is true while the sequence uses LongRoPE's factors for short sequences.
  bool short_rope_;
  // Limits the number of the completion's tokens; -1 means no limit.
  int max_tokens_ = -1;
  // The flag is true if the completion's newest token has not been read yet.
  bool is_ahead_ = false;
  // The pointer is null if drafts are looked up in the sequence.
  std::shared_ptr<DraftModel> draft_model_;
  // Drafts continuations of tokens_. The pointer is null if drafts are disabled.
  std::unique_ptr<DraftSource> drafter_;
  SpeculationPace pace_;
  // The cache holds tokens_, followed by the tokens of draft_ from n_accepted_ on. Row n_accepted_ of logits_
  // belongs to the newest token of tokens_.
  std::vector<std::int32_t> draft_;
  int n_accepted_ = 0;
  ConversationFigures figures_;
};

}  // namespace kvant
