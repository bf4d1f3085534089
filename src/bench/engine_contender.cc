#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "bench/contender.h"
#include "eval/quality_guard.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kFillSeed = 1;

class EngineContender : public Contender {
 public:
  EngineContender(std::string name, Engine& engine, AttentionBackend& backend,
                  std::shared_ptr<const Plan> plan, int guard_every, BenchText text)
      : name_(std::move(name)),
        engine_(engine),
        backend_(backend),
        text_(std::move(text)),
        cache_(std::move(plan), /*byte_limit=*/0),
        filled_(cache_.add()),
        logits_(engine.n_vocab()) {
    if (guard_every > 0) guard_.emplace(backend, cache_.plan(), GuardSettings{.every = guard_every});
  }

  const std::string& name() const override { return name_; }
  double bits() const override { return cache_.length(filled_) == 0 ? 0 : cache_.bytes(filled_).bits_all(); }

  Status fill(int depth) override {
    if (text_ != nullptr) return run_prompt(filled_, depth - cache_.length(filled_), /*want_logits=*/false);
    cache_.free(filled_);
    filled_ = cache_.add();
    if (guard_) guard_->fill_synthetic(depth, kFillSeed);
    return cache_.fill_synthetic(filled_, depth, kFillSeed);
  }

  Result<double> prompt_seconds(int n) override {
    return on_copy([&](SequenceId sequence) -> Result<double> {
      const auto start = Clock::now();
      KVANT_RETURN_IF_ERROR(run_prompt(sequence, n, /*want_logits=*/true));
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
  // Of those after the filled ones.
  std::int32_t token(int i) const { return bench_token(text_, cache_.length(filled_), i, engine_.n_vocab()); }
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // want_logits: of the last token.
  Status run_prompt(SequenceId sequence, int n, bool want_logits) {
    std::vector<std::int32_t> tokens(n);
    for (int i = 0; i < n; ++i) tokens[i] = token(i);
    for (int first = 0; first < n; first += kPromptStep) {
      const int count = std::min(kPromptStep, n - first);
      const auto part = std::span<const std::int32_t>(tokens).subspan(first, count);
      KVANT_RETURN_IF_ERROR(run(sequence, part, /*is_prompt=*/true, want_logits && first + count == n));
    }
    return {};
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
  BenchText text_;
  Cache cache_;
  SequenceId filled_;
  std::optional<QualityGuard> guard_;
  std::vector<float> logits_;  // [n_vocab]
};

}  // namespace

std::unique_ptr<Contender> make_engine_contender(std::string name, Engine& engine, AttentionBackend& backend,
                                                 std::shared_ptr<const Plan> plan, int guard_every,
                                                 BenchText text) {
  return std::make_unique<EngineContender>(std::move(name), engine, backend, std::move(plan), guard_every,
                                           std::move(text));
}

}  // namespace kvant
