// Implements the Contender of kvant's engine. A cache is filled once for each depth. Every timed run works on
// copies (forks) of the filled sequences, so no run changes what the next run finds.
#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "bench/contender.h"
#include "cache/synthetic_sequence.h"
#include "eval/quality_guard.h"
#include "model/finite_logits.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kFillSeed = 1;

class EngineContender : public Contender {
 public:
  EngineContender(std::string name, Engine& engine, AttentionBackend& backend, PlacedPlan plan,
                  ContenderOptions options, int guard_every)
      : name_(std::move(name)),
        engine_(engine),
        backend_(backend),
        options_(std::move(options)),
        cache_(std::move(plan), /*byte_limit=*/0),
        logits_(static_cast<std::size_t>(options_.parallel) * engine.n_vocab()) {
    for (int i = 0; i < options_.parallel; ++i) filled_.push_back(cache_.add());
    if (guard_every > 0) guard_.emplace(backend, cache_.plan(), GuardSettings{.every = guard_every});
  }

  const std::string& name() const override { return name_; }
  std::string asked() const override { return label(cache_.plan().asked); }
  double bits() const override { return depth() == 0 ? 0 : cache_.bytes(filled_[0]).bits_all(); }

  Status fill(int depth) override {
    const int more = depth - this->depth();
    for (std::size_t i = 0; i < filled_.size(); ++i) {
      if (options_.text != nullptr) {
        KVANT_RETURN_IF_ERROR(run_prompt(filled_[i], more, /*want_logits=*/false));
        continue;
      }
      cache_.free(filled_[i]);
      filled_[i] = cache_.add();
      if (guard_) guard_->fill_synthetic(depth, kFillSeed);
      KVANT_RETURN_IF_ERROR(fill_synthetic(cache_, filled_[i], depth, kFillSeed + i));
    }
    return {};
  }

  Result<double> prompt_seconds(int n) override {
    return on_copies(1, [&](std::span<const SequenceId> sequences) -> Result<double> {
      const auto start = Clock::now();
      KVANT_RETURN_IF_ERROR(run_prompt(sequences[0], n, /*want_logits=*/true));
      return seconds_since(start);
    });
  }

  Result<std::vector<double>> token_seconds(int n) override {
    return on_copies(filled_.size(),
                     [&](std::span<const SequenceId> sequences) -> Result<std::vector<double>> {
                       KVANT_RETURN_IF_ERROR(run_each(sequences, 0));
                       return time_tokens(n, [&](int i) { return run_each(sequences, i); });
                     });
  }

 private:
  int depth() const { return cache_.length(filled_[0]); }
  // Returns token i of the tokens that follow the filled tokens.
  std::int32_t token(int i) const { return bench_token(options_.text, depth(), i, engine_.n_vocab()); }
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // Runs n tokens as a prompt. The logits of the last token are computed only if want_logits is true.
  Status run_prompt(SequenceId sequence, int n, bool want_logits) {
    std::vector<std::int32_t> tokens(n);
    for (int i = 0; i < n; ++i) tokens[i] = token(i);
    for (int first = 0; first < n; first += options_.prompt_step) {
      const int count = std::min(options_.prompt_step, n - first);
      const auto part = std::span<const std::int32_t>(tokens).subspan(first, count);
      KVANT_RETURN_IF_ERROR(run(sequence, part, /*is_prompt=*/true, want_logits && first + count == n));
    }
    return {};
  }
  Status run_each(std::span<const SequenceId> sequences, int i) {
    const std::int32_t next = token(i);
    std::vector<EngineInput> inputs;
    for (const SequenceId sequence : sequences)
      inputs.push_back({sequence, {&next, 1}, /*is_prompt=*/false, /*first_logits=*/0});
    return step(inputs, static_cast<int>(inputs.size()));
  }
  Status run(SequenceId sequence, std::span<const std::int32_t> tokens, bool is_prompt, bool want_logits) {
    const int n = static_cast<int>(tokens.size());
    const EngineInput input{sequence, tokens, is_prompt, want_logits ? n - 1 : n};
    return step({&input, 1}, want_logits ? 1 : 0);
  }
  Status step(std::span<const EngineInput> inputs, int n_logits) {
    const MatrixView<float> logits(logits_.data(), n_logits, engine_.n_vocab());
    KVANT_RETURN_IF_ERROR(engine_.step(cache_, guard_ ? *guard_ : backend_, inputs, logits));
    return check_logits(engine_, logits);
  }
  // Runs `body` on copies of the first n filled sequences. Copies share the sealed pages of the originals.
  template <class Body>
  auto on_copies(std::size_t n, const Body& body) -> decltype(body(std::span<const SequenceId>())) {
    std::vector<SequenceId> copies;
    Status forked;
    for (std::size_t i = 0; i < n && forked.ok(); ++i) {
      const auto copy = cache_.fork(filled_[i]);
      if (copy.ok()) {
        copies.push_back(*copy);
      } else {
        forked = copy.error();
      }
    }
    auto seconds = forked.ok() ? body(copies) : forked.error();
    for (const SequenceId copy : copies) cache_.free(copy);
    return seconds;
  }

  std::string name_;
  Engine& engine_;
  AttentionBackend& backend_;
  ContenderOptions options_;
  Cache cache_;
  std::vector<SequenceId> filled_;  // [parallel]
  std::optional<QualityGuard> guard_;
  std::vector<float> logits_;  // [parallel][n_vocab]
};

}  // namespace

std::unique_ptr<Contender> make_engine_contender(std::string name, Engine& engine, AttentionBackend& backend,
                                                 PlacedPlan plan, ContenderOptions options, int guard_every) {
  return std::make_unique<EngineContender>(std::move(name), engine, backend, std::move(plan),
                                           std::move(options), guard_every);
}

}  // namespace kvant
