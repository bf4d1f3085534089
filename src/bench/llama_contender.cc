#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/contender.h"
#include "eval/llama_runtime.h"

namespace kvant {

class LlamaModelFile {
 public:
  explicit LlamaModelFile(LlamaModelPointer loaded) : model(std::move(loaded)) {}
  LlamaModelPointer model;
};

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTile = 512;  // tokens really run to fill the cache: their state is repeated
constexpr llama_seq_id kCopy = 1;

class LlamaContender : public Contender {
 public:
  LlamaContender(std::string name, std::shared_ptr<LlamaModelFile> model, LlamaContextPointer context,
                 double bits, BenchText text)
      : name_(std::move(name)),
        bits_(bits),
        text_(std::move(text)),
        model_(std::move(model)),
        context_(std::move(context)),
        n_vocab_(llama_vocab_n_tokens(llama_model_get_vocab(model_->model.get()))) {}

  const std::string& name() const override { return name_; }
  double bits() const override { return depth_ == 0 ? 0 : bits_; }

  // Runs up to kTile tokens, then repeats their keys and values at later positions: the state of sequence 0
  // is loaded into sequence 1, moved on, and joined to sequence 0. llama.cpp rotates the keys of moved tokens
  // to their new positions in its next decode, which the warming-up step pays for.
  Status fill(int depth) override {
    if (text_ != nullptr) {
      KVANT_RETURN_IF_ERROR(run_prompt(depth - depth_));
      depth_ = depth;
      return {};
    }
    llama_memory_t memory = llama_get_memory(context_.get());
    llama_memory_clear(memory, /*data=*/false);
    depth_ = 0;
    const int head = std::min(depth, kTile);
    if (head == 0) return {};
    KVANT_RETURN_IF_ERROR(run_prompt(head));
    depth_ = head;
    std::vector<std::uint8_t> state(llama_state_seq_get_size(context_.get(), 0));
    if (llama_state_seq_get_data(context_.get(), state.data(), state.size(), 0) == 0)
      return fill_failed(depth);
    while (depth_ < depth) {
      if (llama_state_seq_set_data(context_.get(), state.data(), state.size(), kCopy) == 0)
        return fill_failed(depth);
      const int wanted = std::min(kTile, depth - depth_);
      if (wanted < kTile && !llama_memory_seq_rm(memory, kCopy, wanted, -1)) return fill_failed(depth);
      llama_memory_seq_add(memory, kCopy, 0, -1, depth_);
      llama_memory_seq_cp(memory, kCopy, 0, -1, -1);
      llama_memory_seq_rm(memory, kCopy, -1, -1);
      depth_ += wanted;
    }
    return token_seconds(0).ok() ? Status{} : fill_failed(depth);
  }

  Result<double> prompt_seconds(int n) override {
    const auto start = Clock::now();
    KVANT_RETURN_IF_ERROR(run_prompt(n));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    KVANT_RETURN_IF_ERROR(forget());
    return seconds;
  }

  Result<std::vector<double>> token_seconds(int n) override {
    KVANT_RETURN_IF_ERROR(run_one(0));
    auto seconds = time_tokens(n, [&](int i) { return run_one(i); });
    KVANT_RETURN_IF_ERROR(forget());
    return seconds;
  }

 private:
  std::int32_t token(int i) const { return bench_token(text_, depth_, i, n_vocab_); }
  Status fill_failed(int depth) const {
    return error("{} cannot be filled to a depth of {} tokens", name_, depth);
  }

  Status run_prompt(int n) {
    std::vector<std::int32_t> tokens(n);
    for (int i = 0; i < n; ++i) tokens[i] = token(i);
    for (int first = 0; first < n; first += kPromptStep) {
      const int count = std::min(kPromptStep, n - first);
      const auto part = std::span<const std::int32_t>(tokens).subspan(first, count);
      KVANT_RETURN_IF_ERROR(llama_run(*context_, part, depth_ + first, first + count == n ? 1 : 0));
    }
    llama_synchronize(context_.get());
    return {};
  }
  Status run_one(int i) {
    const std::int32_t next = token(i);
    KVANT_RETURN_IF_ERROR(llama_run(*context_, {&next, 1}, depth_ + i, 1));
    llama_synchronize(context_.get());
    return {};
  }
  // What was run after the filled tokens.
  Status forget() {
    if (llama_memory_seq_rm(llama_get_memory(context_.get()), 0, depth_, -1)) return {};
    return fill_failed(depth_);
  }

  std::string name_;
  double bits_;
  BenchText text_;
  std::shared_ptr<LlamaModelFile> model_;  // outlives the context
  LlamaContextPointer context_;
  int n_vocab_;
  int depth_ = 0;
};

}  // namespace

Result<std::shared_ptr<LlamaModelFile>> open_llama_model(const std::string& path) {
  auto model = load_llama_model(path);
  if (!model.ok()) return model.error();
  return std::make_shared<LlamaModelFile>(std::move(model).value());
}

Result<std::unique_ptr<Contender>> make_llama_contender(const std::string& name,
                                                        std::shared_ptr<LlamaModelFile> model, int max_depth,
                                                        int max_new, int n_threads, BenchText text) {
  auto types = parse_llama_types(name.substr(name.find(':') + 1));
  if (!types.ok()) return types.error();
  // Room for one more tile, which is loaded whole before it is cut.
  const LlamaContextOptions options{*types, max_depth + std::max(max_new, kTile) + 8, kPromptStep,
                                    /*n_sequences=*/2, n_threads};
  auto context = make_llama_context(*model->model, options, nullptr);
  if (!context.ok()) return context.error();
  return std::unique_ptr<Contender>(std::make_unique<LlamaContender>(
      name, std::move(model), std::move(context).value(), bits_per_element(*types), std::move(text)));
}

}  // namespace kvant
