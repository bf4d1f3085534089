// Conversation: one sequence in a cache that reads prompts and generates, with its figures.
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
  // Tokens that were drafted and verified in a step with others, and those of them that were right.
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
  // context: the maximum number of tokens in the sequence. backend: it outlives this, as the session does.
  // most_drafted: tokens that a step may verify beside the newest one, drafted from what the sequence holds;
  // 0: none are. On the CPU the completion stays the same, bit for bit. draft_model: drafts them; null: they
  // are looked up in the sequence.
  Conversation(const Session& session, AttentionBackend& backend, PlacedPlan plan,
               std::unique_ptr<Sampler> sampler, int context, int most_drafted = 0,
               std::shared_ptr<DraftModel> draft_model = nullptr);

  // Whether so many more tokens fit into the context, and an answer's first: an error that says by how much
  // not.
  Status check_room(int n_tokens) const;
  // Reads tokens, with a progress bar when they are many. text: theirs. An error when they don't fit into the
  // context.
  Status read(std::span<const std::int32_t> tokens, const std::string& text,
              const std::atomic<bool>& interrupted);
  // Begins an answer to what was read. Requires that read() succeeded just before and was not interrupted.
  void begin_answer(GenerationOptions options);
  // One more token of it: what can be shown now. Requires that it has not ended.
  Result<GeneratedText> next();
  // Ends it here: what was held back. Requires that it has not ended.
  Result<GeneratedText> interrupt();
  // How the answer has ended; nothing: it goes on.
  std::optional<AnswerEnd> answer_end() const { return end_; }
  const Generation& answer() const { return *answer_; }

  // A whole answer, handed to `print` as soon as it is whole UTF-8 characters.
  Result<AnswerEnd> generate(GenerationOptions options, const std::atomic<bool>& interrupted,
                             const std::function<void(const std::string&)>& print);
  // LongRoPE's factors are those for long sequences from the first token on, because the sequence is kept in
  // a file or watched by a guard. Without that it begins with those for short ones, and is read again when it
  // outgrows them.
  void use_long_rope() { short_rope_ = begins_short_ = false; }
  // Forgets everything but the figures.
  void restart();

  // Takes the place of what is held. An error: what is wrong with the file; out of memory. Nothing has
  // changed then.
  Status restore(const SessionFile& file);
  // Writes what is held. Requires that read() was not interrupted. coder and errors: see write_session.
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
  std::vector<std::int32_t> tokens_;  // that it holds
  std::string text_;                  // theirs
  int most_drafted_;
  std::vector<float> logits_;  // [1 + most_drafted_, n_vocab], of the newest tokens
  std::optional<Generation> answer_;
  std::optional<AnswerEnd> end_;
  bool begins_short_;                        // sequences begin with LongRoPE's factors for short ones
  bool short_rope_;                          // and this one has them
  int max_tokens_ = -1;                      // of the answer; -1: no limit
  bool is_ahead_ = false;                    // the answer's newest token is yet to be read
  std::shared_ptr<DraftModel> draft_model_;  // null: drafts are looked up
  std::unique_ptr<DraftSource> drafter_;     // of tokens_; null: nothing is drafted
  SpeculationPace pace_;
  // The cache holds tokens_ and behind them the draft's tokens from n_accepted_ on. Row n_accepted_ of the
  // logits is that of the newest of tokens_.
  std::vector<std::int32_t> draft_;
  int n_accepted_ = 0;
  ConversationFigures figures_;
};

}  // namespace kvant
