#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "bench/contender.h"
#include "eval/quality_guard.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSeed = 1;

class EngineContender : public Contender {
 public:
  EngineContender(std::string name, Engine& engine, AttentionBackend& backend,
                  std::shared_ptr<const Plan> plan, int guard_every)
      : name_(std::move(name)),
        engine_(engine),
        backend_(backend),
        cache_(std::move(plan), /*byte_limit=*/0),
        filled_(cache_.add()),
        logits_(engine.n_vocab()) {
    if (guard_every > 0) guard_.emplace(backend, cache_.plan(), GuardSettings{.every = guard_every});
  }

  const std::string& name() const override { return name_; }

  Status fill(int depth) override {
    cache_.free(filled_);
    filled_ = cache_.add();
    if (guard_) guard_->fill_synthetic(depth, kSeed);
    return cache_.fill_synthetic(filled_, depth, kSeed);
  }

  Result<double> prompt_seconds(int n) override {
    std::vector<std::int32_t> tokens(n);
    for (int i = 0; i < n; ++i) tokens[i] = token(i);
    return on_copy([&](SequenceId sequence) -> Result<double> {
      const auto start = Clock::now();
      for (int first = 0; first < n; first += kPromptStep) {
        const int count = std::min(kPromptStep, n - first);
        const auto part = std::span<const std::int32_t>(tokens).subspan(first, count);
        KVANT_RETURN_IF_ERROR(run(sequence, part, /*is_prompt=*/true, first + count == n));
      }
      return seconds_since(start);
    });
  }

  Result<std::vector<double>> token_seconds(int n) override {
    return on_copy([&](SequenceId sequence) -> Result<std::vector<double>> {
      KVANT_RETURN_IF_ERROR(run_one(sequence, 0));
      return time_tokens(n, [&](int i) { return run_one(sequence, i); });
    });
  }

 private:
  std::int32_t token(int i) const { return (i * 7919 + 11) % engine_.n_vocab(); }
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  Status run_one(SequenceId sequence, int i) {
    const std::int32_t next = token(i);
    return run(sequence, {&next, 1}, /*is_prompt=*/false, /*want_logits=*/true);
  }
  Status run(SequenceId sequence, std::span<const std::int32_t> tokens, bool is_prompt, bool want_logits) {
    const int n = static_cast<int>(tokens.size());
    const EngineInput input{sequence, tokens, is_prompt, want_logits ? n - 1 : n};
    const MatrixView<float> logits(logits_.data(), want_logits ? 1 : 0, engine_.n_vocab());
    AttentionBackend& backend = guard_ ? *guard_ : backend_;
    return engine_.step(cache_, backend, {&input, 1}, logits);
  }
  // Runs body on a copy of the filled sequence, which shares its sealed pages.
  template <class Body>
  auto on_copy(const Body& body) -> decltype(body(SequenceId{})) {
    auto copy = cache_.fork(filled_);
    if (!copy.ok()) return copy.error();
    auto seconds = body(*copy);
    cache_.free(*copy);
    return seconds;
  }

  std::string name_;
  Engine& engine_;
  AttentionBackend& backend_;
  Cache cache_;
  SequenceId filled_;
  std::optional<QualityGuard> guard_;
  std::vector<float> logits_;  // [n_vocab]
};

}  // namespace

std::unique_ptr<Contender> make_engine_contender(std::string name, Engine& engine, AttentionBackend& backend,
                                                 std::shared_ptr<const Plan> plan, int guard_every) {
  return std::make_unique<EngineContender>(std::move(name), engine, backend, std::move(plan), guard_every);
}

}  // namespace kvant
