// Implements the Contender of llama.cpp. One sequence without a text is filled by running up to kTile tokens
// and repeating the tokens' state. Repetition is much faster than running the whole depth. After each timed
// run, the tokens of the run are removed from the cache.
#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "bench/contender.h"
#include "eval/llama_runtime.h"

namespace kvant {

class LlamaModelFile {
 public:
  LlamaModelPointer model;
  Geometry geometry;
  ggml_backend_dev_t device = nullptr;  // null for the CPU
};

namespace {

using Clock = std::chrono::steady_clock;

// Only this many tokens are really run to fill the cache. The state after these tokens is then repeated.
constexpr int kTile = 512;
constexpr llama_seq_id kCopy = 1;

class LlamaContender : public Contender {
 public:
  LlamaContender(std::string name, std::shared_ptr<LlamaModelFile> model, LlamaContextPointer context,
                 double bits, ContenderOptions options)
      : name_(std::move(name)),
        bits_(bits),
        options_(std::move(options)),
        model_(std::move(model)),
        context_(std::move(context)),
        n_vocab_(llama_vocab_n_tokens(llama_model_get_vocab(model_->model.get()))) {}

  const std::string& name() const override { return name_; }
  double bits() const override { return depth_ == 0 ? 0 : bits_; }

  // Several sequences have separate cells, between which llama.cpp copies only whole sequences. The first
  // sequence therefore runs all tokens of the depth.
  Status fill(int depth) override {
    if (options_.parallel == 1 && options_.text == nullptr) return fill_with_tiles(depth);
    KVANT_RETURN_IF_ERROR(run_prompt(depth - depth_));
    depth_ = depth;
    llama_memory_t memory = llama_get_memory(context_.get());
    for (llama_seq_id copy = 1; copy < options_.parallel; ++copy) {
      llama_memory_seq_rm(memory, copy, -1, -1);
      if (depth > 0) llama_memory_seq_cp(memory, 0, copy, -1, -1);
    }
    return {};
  }

  Result<double> prompt_seconds(int n) override {
    const auto start = Clock::now();
    KVANT_RETURN_IF_ERROR(run_prompt(n));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    KVANT_RETURN_IF_ERROR(forget());
    return seconds;
  }

  Result<std::vector<double>> token_seconds(int n) override {
    KVANT_RETURN_IF_ERROR(run_each(0));
    auto seconds = time_tokens(n, [&](int i) { return run_each(i); });
    KVANT_RETURN_IF_ERROR(forget());
    return seconds;
  }

 private:
  // Runs up to kTile tokens, then repeats the tokens' keys and values at later positions. For each
  // repetition, the state of sequence 0 is loaded into sequence 1, shifted, and joined to sequence 0. The
  // next decode, which is the warm-up step, rotates the keys of shifted tokens to their new positions.
  Status fill_with_tiles(int depth) {
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

  std::int32_t token(int i) const { return bench_token(options_.text, depth_, i, n_vocab_); }
  Status fill_failed(int depth) const {
    return error("{} cannot be filled to a depth of {} tokens", name_, depth);
  }

  Status run_prompt(int n) {
    std::vector<std::int32_t> tokens(n);
    for (int i = 0; i < n; ++i) tokens[i] = token(i);
    for (int first = 0; first < n; first += options_.prompt_step) {
      const int count = std::min(options_.prompt_step, n - first);
      const auto part = std::span<const std::int32_t>(tokens).subspan(first, count);
      KVANT_RETURN_IF_ERROR(llama_run(*context_, part, depth_ + first, first + count == n ? 1 : 0));
    }
    llama_synchronize(context_.get());
    return {};
  }
  Status run_each(int i) {
    const std::vector<std::int32_t> next(options_.parallel, token(i));
    KVANT_RETURN_IF_ERROR(llama_run_each(*context_, next, depth_ + i));
    llama_synchronize(context_.get());
    return {};
  }
  // Removes the tokens that were run after the filled tokens.
  Status forget() {
    for (llama_seq_id sequence = 0; sequence < options_.parallel; ++sequence) {
      if (!llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, depth_, -1))
        return fill_failed(depth_);
    }
    return {};
  }

  std::string name_;
  double bits_;
  ContenderOptions options_;
  // The model must outlive the context.
  std::shared_ptr<LlamaModelFile> model_;
  LlamaContextPointer context_;
  int n_vocab_;
  int depth_ = 0;
};

}  // namespace

Result<std::shared_ptr<LlamaModelFile>> open_llama_model(const std::string& path, const Geometry& geometry,
                                                         const ComputeDevice* device) {
  ggml_backend_dev_t on = device == nullptr ? nullptr : ggml_backend_get_device(device->backend());
  auto model = load_llama_model(path, on);
  if (!model.ok()) return model.error();
  return std::make_shared<LlamaModelFile>(LlamaModelFile{std::move(model).value(), geometry, on});
}

Result<std::unique_ptr<Contender>> make_llama_contender(const std::string& name,
                                                        std::shared_ptr<LlamaModelFile> model, int max_depth,
                                                        int max_new, int n_threads,
                                                        ContenderOptions options) {
  auto types = parse_llama_types(name.substr(name.find(':') + 1));
  if (!types.ok()) return types.error();
  if (model->device != nullptr && options.kv_offload)
    KVANT_RETURN_IF_ERROR(check_flash_attention(name, model->device, model->geometry, *types));
  if (const auto most = llama_max_parallel_sequences(); std::cmp_greater(options.parallel, most))
    return error("{}: llama.cpp decodes at most {} sequences at a time: use --parallel {}, or leave it out",
                 name, most, most);
  LlamaContextOptions wanted{.types = *types, .step_tokens = std::max(options.prompt_step, options.parallel)};
  wanted.on_device = model->device != nullptr;
  wanted.kv_offload = options.kv_offload;
  wanted.n_threads = n_threads;
  // A single sequence shares its cells with a second sequence. The context needs room for one more tile,
  // because fill_with_tiles() loads a whole tile before cutting the tile to size.
  wanted.shares_cells = options.parallel == 1;
  wanted.n_sequences = std::max(2, options.parallel);
  wanted.context = max_depth + std::max(max_new, kTile) + 8;
  if (!wanted.shares_cells) wanted.context *= options.parallel;
  auto context = make_llama_context(*model->model, wanted, nullptr);
  if (!context.ok()) return context.error();
  return std::unique_ptr<Contender>(std::make_unique<LlamaContender>(
      name, std::move(model), std::move(context).value(), bits_per_element(*types), std::move(options)));
}

}  // namespace kvant
