#include "eval/quality_eval.h"

#include <algorithm>
#include <chrono>

#include "model/tokenizer.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

// Holds one source, its row and its metrics.
struct Runner {
  LogitSource* source = nullptr;
  LogitMetrics metrics;
  double seconds = 0;
  CacheBits bits;
  ConstantSize constants;

  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) {
    const auto start = Clock::now();
    const Status status = source->step(tokens, is_prompt, logits);
    seconds += std::chrono::duration<double>(Clock::now() - start).count();
    if (!status.ok()) return error("{}: {}", source->name(), status.error().message);
    return {};
  }
};

class Evaluation {
 public:
  Evaluation(int n_vocab, LogitSource& reference, std::span<const std::unique_ptr<LogitSource>> candidates,
             const QualityOptions& options, const std::function<void(std::int64_t)>& advance)
      : options_(options), n_vocab_(n_vocab), advance_(advance) {
    runners_.push_back({&reference});
    for (const auto& candidate : candidates) runners_.push_back({candidate.get()});
    const std::size_t cells = static_cast<std::size_t>(options.step_tokens) * n_vocab;
    base_.resize(cells);
    if (!candidates.empty()) other_.resize(cells);
  }

  Status run_chunk(std::span<const std::int32_t> tokens) {
    for (Runner& runner : runners_) {
      KVANT_RETURN_IF_ERROR(runner.source->begin());
      runner.metrics.begin_chunk();
    }
    const int half = options_.context / 2;
    for (int start = 0; start < options_.context;) {
      // The prompt runs as one step, because its logits are not stored and a recipe may treat the prompt as
      // one block.
      const int count = start < half ? half : std::min(options_.step_tokens, options_.context - start);
      KVANT_RETURN_IF_ERROR(run_step(tokens, start, count));
      start += count;
    }
    for (Runner& runner : runners_) {
      runner.bits = runner.source->bits();
      runner.constants = runner.source->constants();
    }
    return {};
  }

  QualityResult result(int chunks) const {
    QualityResult result{options_.context, chunks, /*text=*/"", {}};
    for (const Runner& runner : runners_) {
      const LogitMetrics& metrics = runner.metrics;
      result.rows.push_back({runner.source->name(), metrics.summary(), runner.bits, runner.constants,
                             runner.seconds, runner.source->plan(), /*label=*/"", metrics.positions(),
                             metrics.block_means()});
    }
    return result;
  }

 private:
  // Runs the tokens [start, start + count) of the chunk. The tokens must all lie in one half of the chunk.
  Status run_step(std::span<const std::int32_t> chunk, int start, int count) {
    const bool is_scored = start >= options_.context / 2;
    const bool is_prompt = options_.all_prompt || !is_scored;
    const auto tokens = chunk.subspan(start, count);
    // The chunk's last token runs to fill the cache but is not scored, because the token after it is unknown.
    const int n_scored = is_scored ? std::min(count, options_.context - 1 - start) : 0;
    const auto targets = chunk.subspan(start + 1, n_scored);
    const int n_rows = is_scored ? count : 0;
    const MatrixView<float> base(base_.data(), n_rows, n_vocab_);
    const MatrixView<float> other(other_.data(), n_rows, n_vocab_);
    for (Runner& runner : runners_) {
      const bool is_reference = &runner == runners_.data();
      const MatrixView<float> logits = is_reference ? base : other;
      KVANT_RETURN_IF_ERROR(runner.step(tokens, is_prompt, logits));
      KVANT_RETURN_IF_ERROR(runner.metrics.add(base.slice(0, n_scored), logits.slice(0, n_scored), targets,
                                               options_.n_threads));
      advance_(count);
    }
    return {};
  }

  QualityOptions options_;
  int n_vocab_;
  const std::function<void(std::int64_t)>& advance_;
  // The first runner is the reference.
  std::vector<Runner> runners_;
  std::vector<float> base_, other_;  // [step_tokens, n_vocab]
};

}  // namespace

Result<EvalText> tokenize_for_eval(const Tokenizer& tokenizer, const std::string& text) {
  auto tokens = tokenizer.encode(text, /*add_special=*/true, /*parse_special=*/false);
  if (!tokens.ok()) return tokens.error();
  auto plain = tokenizer.encode(text, /*add_special=*/false, /*parse_special=*/false);
  if (!plain.ok()) return plain.error();
  if (plain->empty()) return error("the text is empty: there is nothing to evaluate");
  EvalText result{std::move(tokens).value(), -1};
  const bool begins_alike = result.tokens.front() == plain->front();
  if (result.tokens.size() > plain->size() && !begins_alike) result.bos = result.tokens.front();
  return result;
}

std::string fingerprint(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int32_t token : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x100000001b3;
  }
  return fmt::format("{:016x}", hash);
}

int chunks_available(const EvalText& text, const QualityOptions& options) {
  const int in_text = static_cast<int>(text.tokens.size() / options.context);
  return options.chunks == 0 ? in_text : std::min(options.chunks, in_text);
}

Status for_each_chunk(const EvalText& text, const QualityOptions& options,
                      const std::function<Status(std::span<const std::int32_t>)>& run) {
  const int n_chunks = chunks_available(text, options);
  if (n_chunks == 0) {
    return error(
        "the text has {} tokens, less than one context of {}: give a longer text or a smaller context",
        text.tokens.size(), options.context);
  }
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    const auto first = text.tokens.begin() + static_cast<std::ptrdiff_t>(chunk) * options.context;
    std::vector<std::int32_t> tokens(first, first + options.context);
    if (text.bos >= 0) tokens.front() = text.bos;
    KVANT_RETURN_IF_ERROR(run(tokens));
  }
  return {};
}

Result<QualityResult> evaluate_quality(const EvalText& text, int n_vocab, LogitSource& reference,
                                       std::span<const std::unique_ptr<LogitSource>> candidates,
                                       const QualityOptions& options,
                                       const std::function<void(std::int64_t)>& advance) {
  Evaluation evaluation(n_vocab, reference, candidates, options, advance);
  const Status status = for_each_chunk(
      text, options, [&](std::span<const std::int32_t> tokens) { return evaluation.run_chunk(tokens); });
  if (!status.ok()) return status.error();
  const int chunks = chunks_available(text, options);
  QualityResult result = evaluation.result(chunks);
  result.text = fingerprint(std::span(text.tokens).first(std::size_t{1} * chunks * options.context));
  return result;
}

}  // namespace kvant
