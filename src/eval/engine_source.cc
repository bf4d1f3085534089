#include "eval/engine_source.h"

#include <algorithm>
#include <optional>

#include "eval/cache_size.h"
#include "model/finite_logits.h"

namespace kvant {
namespace {

class EngineSource : public LogitSource {
 public:
  EngineSource(std::string name, Engine& engine, AttentionBackend& backend, PlacedPlan plan, int step_tokens)
      : name_(std::move(name)),
        engine_(engine),
        backend_(backend),
        cache_(std::move(plan), /*byte_limit=*/0),
        step_tokens_(step_tokens),
        sequence_(cache_.add()) {}

  const std::string& name() const override { return name_; }
  CacheBits bits() const override {
    return mean_bits(cache_.plan(), cache_.length(sequence_), cache_.bytes(sequence_));
  }
  ConstantSize constants() const override {
    return constant_size(cache_.plan(), std::max(1, cache_.length(sequence_)));
  }
  PlanReport plan() const override { return report_plan(cache_.plan(), backend_); }

  Status begin() override {
    cache_.free(sequence_);
    if (marked_) cache_.free(*marked_);
    marked_.reset();
    sequence_ = cache_.add();
    return {};
  }
  Status mark() override {
    if (marked_) cache_.free(*marked_);
    return copy(sequence_, marked_.emplace());
  }
  Status rewind() override {
    KVANT_CHECK(marked_.has_value(), "rewind without a mark");
    cache_.free(sequence_);
    return copy(*marked_, sequence_);
  }

  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) override {
    const int n = static_cast<int>(tokens.size());
    const int first_wanted = n - logits.rows;
    // A prompt that the recipe treats as one block must run as one step.
    const bool one_step = is_prompt && cache_.plan().recipe.prefill == kPrefillAll;
    const int step_tokens = one_step ? n : step_tokens_;
    for (int start = 0; start < n; start += step_tokens) {
      const int count = std::min(step_tokens, n - start);
      const int skipped = std::clamp(first_wanted - start, 0, count);
      const EngineInput input{sequence_, tokens.subspan(start, count), is_prompt, skipped};
      const int first_row = std::max(start - first_wanted, 0);
      KVANT_RETURN_IF_ERROR(
          engine_.step(cache_, backend_, {&input, 1}, logits.slice(first_row, count - skipped)));
    }
    return check_logits(engine_, logits);
  }

 private:
  Status copy(SequenceId from, SequenceId& to) {
    const auto forked = cache_.fork(from);
    // A failed fork leaves an empty sequence, so every sequence id stays valid.
    to = forked.ok() ? *forked : cache_.add();
    if (!forked.ok()) return forked.error();
    return {};
  }

  std::string name_;
  Engine& engine_;
  AttentionBackend& backend_;
  Cache cache_;
  int step_tokens_;
  SequenceId sequence_;
  std::optional<SequenceId> marked_;
};

}  // namespace

std::unique_ptr<LogitSource> make_engine_source(std::string name, Engine& engine, AttentionBackend& backend,
                                                PlacedPlan plan, int step_tokens) {
  return std::make_unique<EngineSource>(std::move(name), engine, backend, std::move(plan), step_tokens);
}

}  // namespace kvant
