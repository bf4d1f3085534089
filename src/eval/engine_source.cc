#include "eval/engine_source.h"

#include <algorithm>
#include <optional>
#include <vector>

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
        sequences_{cache_.add()} {}

  const std::string& name() const override { return name_; }
  CacheBits bits() const override {
    return mean_bits(cache_.plan(), cache_.length(sequences_.front()), cache_.bytes(sequences_.front()));
  }
  ConstantSize constants() const override {
    return constant_size(cache_.plan(), std::max(1, cache_.length(sequences_.front())));
  }
  PlanReport plan() const override { return report_plan(cache_.plan(), backend_); }

  Status begin() override { return begin_texts(1); }
  Status begin_texts(int n_texts) override {
    for (const SequenceId sequence : sequences_) cache_.free(sequence);
    if (marked_) cache_.free(*marked_);
    marked_.reset();
    sequences_.clear();
    for (int i = 0; i < n_texts; ++i) sequences_.push_back(cache_.add());
    return {};
  }
  Status mark() override {
    if (marked_) cache_.free(*marked_);
    return copy(sequences_.front(), marked_.emplace());
  }
  Status rewind() override {
    KVANT_CHECK(marked_.has_value(), "rewind without a mark");
    cache_.free(sequences_.front());
    return copy(*marked_, sequences_.front());
  }

  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) override {
    return run(sequences_.front(), tokens, is_prompt, logits);
  }
  Status step_texts(std::span<const std::span<const std::int32_t>> texts, bool is_prompt,
                    MatrixView<float> logits) override {
    KVANT_CHECK(texts.size() == sequences_.size(), "not the texts that began");
    std::vector<EngineInput> inputs;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (is_prompt)
        KVANT_RETURN_IF_ERROR(run(sequences_[i], texts[i], is_prompt, logits.slice(static_cast<int>(i), 1)));
      inputs.push_back({sequences_[i], texts[i]});
    }
    if (is_prompt) return {};
    KVANT_RETURN_IF_ERROR(engine_.step(cache_, backend_, inputs, logits));
    return check_logits(engine_, logits);
  }

 private:
  Status run(SequenceId sequence, std::span<const std::int32_t> tokens, bool is_prompt,
             MatrixView<float> logits) {
    const int n = static_cast<int>(tokens.size());
    const int first_wanted = n - logits.rows;
    // A prompt that the recipe treats as one block must run as one step.
    const bool one_step = is_prompt && cache_.plan().recipe.prefill == kPrefillAll;
    const int step_tokens = one_step ? n : step_tokens_;
    for (int start = 0; start < n; start += step_tokens) {
      const int count = std::min(step_tokens, n - start);
      const int skipped = std::clamp(first_wanted - start, 0, count);
      const EngineInput input{sequence, tokens.subspan(start, count), is_prompt, skipped};
      const int first_row = std::max(start - first_wanted, 0);
      KVANT_RETURN_IF_ERROR(
          engine_.step(cache_, backend_, {&input, 1}, logits.slice(first_row, count - skipped)));
    }
    return check_logits(engine_, logits);
  }

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
  std::vector<SequenceId> sequences_;  // one for each text
  std::optional<SequenceId> marked_;
};

}  // namespace

std::unique_ptr<LogitSource> make_engine_source(std::string name, Engine& engine, AttentionBackend& backend,
                                                PlacedPlan plan, int step_tokens) {
  return std::make_unique<EngineSource>(std::move(name), engine, backend, std::move(plan), step_tokens);
}

}  // namespace kvant
