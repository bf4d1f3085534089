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
        base_(options.n_texts * n_vocab),
        other_(options.n_texts * n_vocab),
        metrics_(sources.size()) {}

  // Completes prompts side by side. Appends the positions at which the reference would have ended.
  Status complete(std::span<const std::vector<std::int32_t>> prompts, std::vector<int>& ends) {
    const std::size_t n = prompts.size();
    for (const auto& source : sources_) KVANT_RETURN_IF_ERROR(source->begin_texts(static_cast<int>(n)));
    Scores scores(sources_.size(), std::vector<std::vector<LogitComparison>>(n));
    std::vector<std::span<const std::int32_t>> tokens(prompts.begin(), prompts.end());
    std::vector<std::int32_t> next(n), read;  // the tokens that follow, and the tokens that were read last
    std::vector<int> end(n, options_.generated_tokens);
    for (int position = 0; position < options_.generated_tokens; ++position) {
      KVANT_RETURN_IF_ERROR(step(0, tokens, position == 0, base_));
      for (std::size_t p = 0; p < n; ++p) {
        bool would_end = false;
        next[p] = likeliest(base_.data() + p * n_vocab_, would_end);
        if (would_end) end[p] = std::min(end[p], position);
      }
      add(base_, next, scores[0]);
      for (std::size_t i = 1; i < sources_.size(); ++i) {
        KVANT_RETURN_IF_ERROR(step(i, tokens, position == 0, other_));
        add(other_, next, scores[i]);
      }
      read = next;
      for (std::size_t p = 0; p < n; ++p) tokens[p] = {&read[p], 1};
    }
    ends.insert(ends.end(), end.begin(), end.end());
    return keep(scores);
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
  // Scores holds the scores of each source, of each prompt that is completed, by position.
  using Scores = std::vector<std::vector<std::vector<LogitComparison>>>;

  Status step(std::size_t i, std::span<const std::span<const std::int32_t>> tokens, bool is_prompt,
              std::vector<float>& logits) {
    const Status done = sources_[i]->step_texts(tokens, is_prompt,
                                                {logits.data(), static_cast<int>(tokens.size()), n_vocab_});
    return done.ok() ? done : error("{}: {}", sources_[i]->name(), done.error().message);
  }

  // Adds the scores of one position of every prompt.
  void add(const std::vector<float>& logits, std::span<const std::int32_t> next,
           std::vector<std::vector<LogitComparison>>& scores) {
    const int n = static_cast<int>(next.size());
    const std::vector<LogitComparison> rows =
        compare_rows({base_.data(), n, n_vocab_}, {logits.data(), n, n_vocab_}, next, options_.n_threads);
    for (int p = 0; p < n; ++p) scores[p].push_back(rows[p]);
    advance_(n);
  }

  // Keeps the scores of completed prompts, one prompt after another.
  Status keep(const Scores& scores) {
    for (std::size_t i = 0; i < scores.size(); ++i) {
      for (const std::vector<LogitComparison>& of_prompt : scores[i]) {
        metrics_[i].begin_chunk();
        KVANT_RETURN_IF_ERROR(metrics_[i].add(of_prompt));
      }
    }
    return {};
  }

  // Returns the likeliest token that does not end the completion, from the reference's logits [n_vocab]. Sets
  // `ends` if a likelier token does.
  std::int32_t likeliest(const float* of_reference, bool& ends) const {
    std::vector<float> logits(of_reference, of_reference + n_vocab_);
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
  std::vector<float> base_, other_;  // [n_texts, n_vocab]
  std::vector<LogitMetrics> metrics_;
};

}  // namespace

Result<DriftResult> evaluate_drift(std::span<const std::vector<std::int32_t>> prompts, int n_vocab,
                                   std::span<const std::unique_ptr<LogitSource>> sources,
                                   const DriftOptions& options, const std::function<void(int)>& advance) {
  DriftRun run(n_vocab, sources, options, advance);
  DriftResult result{options.generated_tokens, static_cast<int>(prompts.size()), /*text=*/"", {}, {}};
  std::vector<std::int32_t> all;
  for (const std::vector<std::int32_t>& prompt : prompts) all.insert(all.end(), prompt.begin(), prompt.end());
  for (std::size_t first = 0; first < prompts.size(); first += options.n_texts) {
    const std::size_t count = std::min<std::size_t>(options.n_texts, prompts.size() - first);
    KVANT_RETURN_IF_ERROR(run.complete(prompts.subspan(first, count), result.ends));
  }
  for (std::size_t i = 0; i < sources.size(); ++i) result.rows.push_back(run.row(i, result.prompts));
  result.text = fingerprint(all);
  return result;
}

}  // namespace kvant
