#include "eval/tasks/batch_generation.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <memory>
#include <thread>

#include "generate/prompt_steps.h"
#include "model/finite_logits.h"

namespace kvant {
namespace {

// Starting a thread takes about as long as choosing the tokens of this many rows.
constexpr int kRowsPerThread = 2;

// Holds one prompt while its completion is generated.
struct BatchRow {
  std::size_t number = 0;
  SequenceId sequence = 0;
  int n_read = 0;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<Generation> generation;
  std::string text;
};

// Describes what a step does for a row.
struct BatchPart {
  BatchRow* row;
  std::vector<std::int32_t> tokens;
  bool is_prompt;
  bool has_logits;
};

class BatchRun {
 public:
  BatchRun(Engine& engine, AttentionBackend& backend, PlacedPlan plan, std::span<const BatchPrompt> prompts,
           const BatchOptions& options, const std::function<void()>& done)
      : engine_(engine),
        backend_(backend),
        prompts_(prompts),
        options_(options),
        done_(done),
        on_device_(plan.on_device()),
        batch_(on_device_ ? options.parallel : std::min(options.parallel, engine.independent_sequences())),
        cache_(std::move(plan), /*byte_limit=*/0),
        completions_(prompts.size()) {}

  Result<std::vector<BatchCompletion>> run() {
    while (next_ < prompts_.size() || !rows_.empty()) {
      KVANT_RETURN_IF_ERROR(admit());
      KVANT_RETURN_IF_ERROR(step());
    }
    return std::move(completions_);
  }

 private:
  Status admit() {
    while (next_ < prompts_.size() && static_cast<int>(rows_.size()) < options_.parallel) {
      const BatchPrompt& prompt = prompts_[next_];
      auto sampler = Sampler::make({.temperature = 0});
      if (!sampler.ok()) return sampler.error();
      BatchRow row{.number = next_++, .sequence = cache_.add(), .sampler = std::move(sampler).value()};
      row.sampler->begin(prompt.tokens);
      row.generation = std::make_unique<Generation>(engine_.tokenizer(), *row.sampler, prompt.options);
      rows_.push_back(std::move(row));
    }
    return {};
  }

  Status step() {
    std::vector<BatchPart> decoded, read;
    int left = options_.step_tokens;
    for (BatchRow& row : rows_) {
      const std::vector<std::int32_t>& prompt = prompts_[row.number].tokens;
      const int n_prompt = static_cast<int>(prompt.size());
      if (row.n_read == n_prompt) {
        decoded.push_back({&row, {row.generation->token()}, /*is_prompt=*/false, /*has_logits=*/true});
      } else if (left >= kMinPromptStep) {
        // A prompt that the recipe treats as one block must run as one step.
        const bool one_step = cache_.plan().recipe.prefill == kPrefillAll;
        const int n = one_step ? n_prompt : next_prompt_step(row.n_read, n_prompt, left);
        const auto first = prompt.begin() + row.n_read;
        read.push_back({&row, {first, first + n}, /*is_prompt=*/true, row.n_read + n == n_prompt});
        left -= n;
      }
    }
    if (on_device_) {
      std::ranges::move(read, std::back_inserter(decoded));
      return run(decoded);
    }
    for (std::size_t first = 0; first < decoded.size(); first += batch_) {
      const std::size_t count = std::min<std::size_t>(batch_, decoded.size() - first);
      KVANT_RETURN_IF_ERROR(run(std::span(decoded).subspan(first, count)));
    }
    for (const BatchPart& part : read) KVANT_RETURN_IF_ERROR(run({&part, 1}));
    return {};
  }

  // Runs the parts in one step of the engine.
  Status run(std::span<const BatchPart> parts) {
    std::vector<EngineInput> inputs;
    int n_logits = 0;
    for (const BatchPart& part : parts) {
      const int n = static_cast<int>(part.tokens.size());
      inputs.push_back({.sequence = part.row->sequence,
                        .tokens = part.tokens,
                        .is_prompt = part.is_prompt,
                        .first_logits = part.has_logits ? n - 1 : n});
      n_logits += part.has_logits ? 1 : 0;
    }
    const std::size_t n_vocab = engine_.n_vocab();
    logits_.resize(std::max(logits_.size(), n_logits * n_vocab));
    const MatrixView<float> logits(logits_.data(), n_logits, engine_.n_vocab());
    KVANT_RETURN_IF_ERROR(engine_.step(cache_, backend_, inputs, logits));
    KVANT_RETURN_IF_ERROR(check_logits(engine_, logits));
    std::vector<BatchRow*> chosen;
    for (const BatchPart& part : parts) {
      if (part.is_prompt) part.row->n_read += static_cast<int>(part.tokens.size());
      if (part.has_logits) chosen.push_back(part.row);
    }
    take_tokens(chosen, logits);
    rows_.remove_if([](const BatchRow& row) { return row.generation->end() != GenerationEnd::none; });
    return {};
  }

  // Takes the next token of each row. Searching a large vocabulary takes about as long as a device's step, so
  // threads share the rows.
  void take_tokens(const std::vector<BatchRow*>& rows, MatrixView<const float> logits) {
    const std::size_t n_vocab = engine_.n_vocab();
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < rows.size(); i = next++)
        rows[i]->text += rows[i]->generation->next({logits.row(static_cast<int>(i)), n_vocab}).text;
    };
    {
      const int n_threads = std::min(options_.n_threads, static_cast<int>(rows.size()) / kRowsPerThread);
      std::vector<std::jthread> threads;
      for (int i = 1; i < n_threads; ++i) threads.emplace_back(work);
      work();
    }
    for (BatchRow* row : rows) {
      if (row->generation->end() != GenerationEnd::none) finish(*row);
    }
  }

  void finish(BatchRow& row) {
    completions_[row.number] = {std::move(row.text), row.generation->n_tokens(),
                                row.generation->end() == GenerationEnd::length};
    cache_.free(row.sequence);
    done_();
  }

  Engine& engine_;
  AttentionBackend& backend_;
  std::span<const BatchPrompt> prompts_;
  BatchOptions options_;
  const std::function<void()>& done_;
  bool on_device_;
  int batch_;  // one step decodes at most this many sequences
  Cache cache_;
  std::vector<BatchCompletion> completions_;
  std::list<BatchRow> rows_;  // the oldest row comes first
  std::size_t next_ = 0;      // the number of the next prompt
  std::vector<float> logits_;
};

}  // namespace

Result<std::vector<BatchCompletion>> generate_batch(Engine& engine, AttentionBackend& backend,
                                                    PlacedPlan plan, std::span<const BatchPrompt> prompts,
                                                    const BatchOptions& options,
                                                    const std::function<void()>& done) {
  return BatchRun(engine, backend, std::move(plan), prompts, options, done).run();
}

}  // namespace kvant
