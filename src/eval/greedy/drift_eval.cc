#include "eval/greedy/drift_eval.h"

#include <algorithm>
#include <limits>

#include "eval/quality_eval.h"

namespace kvant {
namespace {

class DriftRun {
 public:
  DriftRun(int n_vocab, std::span<const std::unique_ptr<LogitSource>> sources, const DriftOptions& options,
           const std::function<void(int)>& advance)
      : n_vocab_(n_vocab),
        sources_(sources),
        options_(options),
        advance_(advance),
        base_(n_vocab),
        other_(n_vocab),
        metrics_(sources.size()) {}

  // Completes one prompt. Returns the position at which the reference would have ended.
  Result<int> complete(std::span<const std::int32_t> prompt) {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      KVANT_RETURN_IF_ERROR(sources_[i]->begin());
      metrics_[i].begin_chunk();
    }
    std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
    int end = options_.generated_tokens;
    for (int position = 0; position < options_.generated_tokens; ++position) {
      KVANT_RETURN_IF_ERROR(step(0, tokens, position == 0, base_));
      bool ends = false;
      const std::int32_t next = likeliest(ends);
      if (ends) end = std::min(end, position);
      KVANT_RETURN_IF_ERROR(add(0, base_, next));
      for (std::size_t i = 1; i < sources_.size(); ++i) {
        KVANT_RETURN_IF_ERROR(step(i, tokens, position == 0, other_));
        KVANT_RETURN_IF_ERROR(add(i, other_, next));
      }
      tokens = {next};
    }
    return end;
  }

  DriftRow row(std::size_t i, int n_prompts) const {
    DriftRow row{sources_[i]->name(), /*label=*/"", sources_[i]->plan(), metrics_[i].summary(), {}};
    for (int first = 0; first < options_.generated_tokens; first += options_.block_tokens) {
      const int count = std::min(options_.block_tokens, options_.generated_tokens - first);
      row.blocks.push_back(block(metrics_[i].positions(), n_prompts, first, count));
    }
    return row;
  }

 private:
  Status step(std::size_t i, std::span<const std::int32_t> tokens, bool is_prompt,
              std::vector<float>& logits) {
    const Status done = sources_[i]->step(tokens, is_prompt, {logits.data(), 1, n_vocab_});
    return done.ok() ? done : error("{}: {}", sources_[i]->name(), done.error().message);
  }

  Status add(std::size_t i, const std::vector<float>& logits, std::int32_t next) {
    advance_(1);
    return metrics_[i].add({base_.data(), 1, n_vocab_}, {logits.data(), 1, n_vocab_}, {&next, 1},
                           options_.n_threads);
  }

  // Returns the reference's likeliest token that does not end the completion. Sets `ends` if a likelier token
  // does.
  std::int32_t likeliest(bool& ends) const {
    std::vector<float> logits = base_;
    while (true) {
      const auto token =
          static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      if (!options_.ends_generation(token)) return token;
      KVANT_CHECK(logits[token] != -std::numeric_limits<float>::infinity(), "every token ends a completion");
      ends = true;
      logits[token] = -std::numeric_limits<float>::infinity();
    }
  }

  DriftBlock block(const PositionScores& positions, int n_prompts, int first, int count) const {
    DriftBlock block{first, count};
    std::vector<double> of_prompts;
    for (int prompt = 0; prompt < n_prompts; ++prompt) {
      double kld = 0;
      const int start = prompt * options_.generated_tokens + first;
      for (int j = start; j < start + count; ++j) {
        kld += positions.kld[j];
        block.top1 += positions.same_top[j];
      }
      of_prompts.push_back(kld / count);
      block.kld += kld;
    }
    block.kld /= static_cast<double>(count) * n_prompts;
    block.top1 /= static_cast<double>(count) * n_prompts;
    block.interval = bootstrap_mean(of_prompts);
    return block;
  }

  int n_vocab_;
  std::span<const std::unique_ptr<LogitSource>> sources_;
  DriftOptions options_;
  const std::function<void(int)>& advance_;
  std::vector<float> base_, other_;  // [n_vocab]
  std::vector<LogitMetrics> metrics_;
};

}  // namespace

Result<DriftResult> evaluate_drift(std::span<const std::vector<std::int32_t>> prompts, int n_vocab,
                                   std::span<const std::unique_ptr<LogitSource>> sources,
                                   const DriftOptions& options, const std::function<void(int)>& advance) {
  DriftRun run(n_vocab, sources, options, advance);
  DriftResult result{options.generated_tokens, static_cast<int>(prompts.size()), /*text=*/"", {}, {}};
  std::vector<std::int32_t> all;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    all.insert(all.end(), prompt.begin(), prompt.end());
    const auto end = run.complete(prompt);
    if (!end.ok()) return end.error();
    result.ends.push_back(*end);
  }
  for (std::size_t i = 0; i < sources.size(); ++i) result.rows.push_back(run.row(i, result.prompts));
  result.text = fingerprint(all);
  return result;
}

}  // namespace kvant
