#include "generate/draft_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "generate/prompt_steps.h"
#include "generate/speculation_pace.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;
using Tokens = std::vector<std::int32_t>;

constexpr int kPromptChunk = 512;      // tokens per step of a prompt, which bounds the memory for
                                       // activations
constexpr std::size_t kMostKept = 16;  // this many ended sequences stay in the cache
// Files of one model family may pad the same vocabulary to different sizes, by at most this many tokens.
constexpr int kMostPadding = 1024;
// A first draft has kTrialTokens tokens, before the acceptance rate is known. If drafting does not pay, every
// kTrialEvery-th step drafts again, because the text may have changed.
constexpr int kTrialTokens = 4, kTrialEvery = 64;
// A draft ends where the chance that all its tokens are right falls below this value.
constexpr double kLeastOdds = 0.2;
// Each new measurement multiplies the old moving averages of odds and times by this weight.
constexpr double kOldShare = 0.95;

std::size_t common_length(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

struct Likeliest {
  std::int32_t token = 0;
  double odds = 0;
};

Likeliest likeliest(std::span<const float> logits) {
  const auto best = std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - *best);
  return {static_cast<std::int32_t>(best - logits.begin()), 1 / sum};
}

Status check_tokenizer(const Engine& engine, const Engine& target) {
  const int n = std::min(engine.n_vocab(), target.n_vocab());
  if (std::max(engine.n_vocab(), target.n_vocab()) - n > kMostPadding)
    return error("its tokenizer has {} tokens and the model's has {}: give a model of the same family",
                 engine.n_vocab(), target.n_vocab());
  for (int token = 0; token < n; ++token) {
    if (engine.tokenizer().piece(token) != target.tokenizer().piece(token))
      return error("its tokenizer is not the model's, as token {} shows: give a model of the same family",
                   token);
  }
  return {};
}

}  // namespace

// ModelDraft drafts for one sequence.
class ModelDraft : public DraftSource {
 public:
  explicit ModelDraft(std::shared_ptr<DraftModel> model) : model_(std::move(model)) {}
  ~ModelDraft() override {
    if (has_sequence_) model_->keep(std::move(held_));
  }
  ModelDraft(const ModelDraft&) = delete;
  ModelDraft& operator=(const ModelDraft&) = delete;

  void read(std::span<const std::int32_t> tokens) override {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    drafted_.clear();
  }

  void generate(std::int32_t token) override {
    tokens_.push_back(token);
    if (n_compared_ < drafted_.size()) {
      const bool is_right = drafted_[n_compared_++] == token;
      odds_ = kOldShare * odds_ + (1 - kOldShare) * (is_right ? 1 : 0);
      if (!is_right) drafted_.clear();
    }
  }

  Draft propose(int most, const SpeculationPace& pace) override {
    drafted_.clear();
    n_compared_ = 0;
    if (most == 0 || out_of_memory_ || tokens_.empty() || !pace.knows_plain_steps()) return {};
    int wanted = std::min(most, kTrialTokens);
    if (seconds_ > 0) wanted = pace.worth_drafting(odds_, seconds_, most);
    n_skipped_ = wanted == 0 ? n_skipped_ + 1 : 0;
    if (wanted == 0 && n_skipped_ < kTrialEvery) return {};
    n_skipped_ = 0;
    Draft draft = propose_tokens(wanted == 0 ? std::min(most, kTrialTokens) : wanted);
    drafted_ = draft.tokens;
    return draft;
  }

 private:
  Draft propose_tokens(int wanted) {
    if (!has_sequence_) held_ = model_->take(tokens_);
    has_sequence_ = true;
    Draft draft;
    if (!model_->catch_up(held_, tokens_)) return give_up();
    double all_right = 1;
    std::int32_t token = tokens_.back();
    const auto start = Clock::now();
    while (std::ssize(draft.tokens) < wanted && all_right >= kLeastOdds) {
      if (!model_->step(held_, {&token, 1}, /*is_prompt=*/false, /*wants_logits=*/true)) return give_up();
      const Likeliest next = likeliest(model_->logits_);
      if (next.token >= model_->n_target_vocab_) break;
      token = next.token;
      all_right *= next.odds;
      draft.tokens.push_back(token);
      draft.odds.push_back(next.odds);
    }
    if (draft.tokens.empty()) return draft;
    const double each = std::chrono::duration<double>(Clock::now() - start).count() /
                        static_cast<double>(draft.tokens.size());
    seconds_ = seconds_ == 0 ? each : kOldShare * seconds_ + (1 - kOldShare) * each;
    return draft;
  }

  Draft give_up() {
    out_of_memory_ = true;
    model_->keep(std::exchange(held_, {}));
    has_sequence_ = false;
    return {};
  }

  std::shared_ptr<DraftModel> model_;
  Tokens tokens_;
  Tokens drafted_;
  std::size_t n_compared_ = 0;  // the sequence has passed this many tokens of the draft
  double odds_ = 0.8;   // moving average of the chance that a drafted token is right if all drafted tokens
                        // before it are right
  double seconds_ = 0;  // moving average of the time to draft one token, in seconds; 0 if unknown
  int n_skipped_ = 0;   // steps since the last draft, while drafting does not pay
  bool has_sequence_ = false, out_of_memory_ = false;
  DraftModel::Held held_;
};

Result<std::shared_ptr<DraftModel>> DraftModel::make(Engine& engine, AttentionBackend& backend,
                                                     PlacedPlan plan, const Engine& target,
                                                     std::int64_t byte_limit) {
  if (engine.geometry().is_recurrent())
    return error(
        "it has recurrent layers, whose state cannot be taken back: give a model with attention alone");
  KVANT_RETURN_IF_ERROR(check_tokenizer(engine, target));
  return std::shared_ptr<DraftModel>(
      new DraftModel(engine, backend, std::move(plan), target.n_vocab(), byte_limit));
}

DraftModel::DraftModel(Engine& engine, AttentionBackend& backend, PlacedPlan plan, int n_target_vocab,
                       std::int64_t byte_limit)
    : engine_(engine),
      backend_(backend),
      cache_(std::move(plan), byte_limit),
      n_target_vocab_(n_target_vocab),
      logits_(engine.n_vocab()) {}

std::unique_ptr<DraftSource> DraftModel::source(std::shared_ptr<DraftModel> model) {
  return std::make_unique<ModelDraft>(std::move(model));
}

// Returns the kept sequence that has most in common with `tokens`, or a new sequence. At least half of the
// kept sequence must agree with `tokens`, as in successive turns of a chat.
DraftModel::Held DraftModel::take(std::span<const std::int32_t> tokens) {
  auto best = kept_.end();
  std::size_t most_common = 0;
  for (auto held = kept_.begin(); held != kept_.end(); ++held) {
    const std::size_t common = common_length(held->tokens, tokens);
    if (common <= most_common || 2 * common < held->tokens.size()) continue;
    best = held;
    most_common = common;
  }
  if (best == kept_.end()) return {cache_.add(), {}};
  Held taken = std::move(*best);
  kept_.erase(best);
  return taken;
}

void DraftModel::keep(Held held) {
  kept_.push_front(std::move(held));
  if (kept_.size() <= kMostKept) return;
  cache_.free(kept_.back().sequence);
  kept_.pop_back();
}

bool DraftModel::catch_up(Held& held, std::span<const std::int32_t> tokens) {
  const auto wanted = tokens.first(tokens.size() - 1);
  const std::size_t common = common_length(held.tokens, wanted);
  if (common < held.tokens.size()) {
    if (!cache_.truncate(held.sequence, static_cast<int>(common)).ok()) return false;
    held.tokens.resize(common);
  }
  while (held.tokens.size() < wanted.size()) {
    const int n =
        next_prompt_step(static_cast<int>(held.tokens.size()), static_cast<int>(wanted.size()), kPromptChunk);
    if (!step(held, wanted.subspan(held.tokens.size(), n), /*is_prompt=*/true, /*wants_logits=*/false))
      return false;
  }
  return true;
}

// Runs one step of the draft model. If memory is short, the step drops kept sequences, the oldest first.
bool DraftModel::step(Held& held, std::span<const std::int32_t> tokens, bool is_prompt, bool wants_logits) {
  const int n_logits = wants_logits ? 1 : 0;
  const EngineInput input{held.sequence, tokens, is_prompt, static_cast<int>(tokens.size()) - n_logits};
  for (;;) {
    const Status done =
        engine_.step(cache_, backend_, {&input, 1}, {logits_.data(), n_logits, engine_.n_vocab()});
    if (done.ok()) break;
    if (!done.error().is_shortage || kept_.empty()) return false;
    cache_.free(kept_.back().sequence);
    kept_.pop_back();
  }
  held.tokens.insert(held.tokens.end(), tokens.begin(), tokens.end());
  return true;
}

}  // namespace kvant
