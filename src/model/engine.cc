#include "model/engine.h"

#include <ggml-backend.h>

#include "model/compute_device.h"
#include "model/device_executor.h"
#include "model/device_graph.h"
#include "model/forward.h"
#include "model/gguf_file.h"
#include "model/hparams.h"
#include "model/independent_rows.h"
#include "model/processor.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace kvant {
namespace {

class GgufEngine : public Engine {
 public:
  GgufEngine(std::shared_ptr<GgufFile> file, Hparams hparams, std::shared_ptr<const Weights> weights,
             std::shared_ptr<const Tokenizer> tokenizer, const EngineOptions& options,
             DeviceProducts products = DeviceProducts::fastest)
      : file_(std::move(file)),
        hparams_(std::move(hparams)),
        geometry_(hparams_.geometry()),
        weights_(std::move(weights)),
        tokenizer_(std::move(tokenizer)),
        options_(options),
        executor_(make_executor(products)) {}

  const Geometry& geometry() const override { return geometry_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  int n_vocab() const override { return hparams_.n_vocab; }
  std::int64_t weight_bytes() const override { return weights_->bytes(); }
  std::int64_t host_weight_bytes() const override { return weights_->host_bytes(); }
  std::string fingerprint() const override {
    // Pages and constants on disk hold keys as the engine scales them, so the fingerprint says whether keys
    // are balanced.
    constexpr std::uint64_t kBalanced = 0x62616c616e636564U;
    return fmt::format("{:016x}", file_->content_hash() ^ (weights_->balances_keys() ? kBalanced : 0));
  }
  ModelParts parts() const override { return {*file_, hparams_, *weights_}; }
  int short_rope_context() const override {
    return weights_->has_short_rope_factors() ? hparams_.rope.original_context : 0;
  }
  int independent_sequences() const override {
    return options_.device != nullptr ? 1 : independent_rows(*weights_, hparams_.n_layers);
  }
  std::unique_ptr<Engine> in_f32() const override {
    if (options_.device == nullptr) return nullptr;
    return std::make_unique<GgufEngine>(file_, hparams_, weights_, tokenizer_, options_, DeviceProducts::f32);
  }
  std::string description() const override {
    return fmt::format("{} {}", geometry_.model, weights_->type_name());
  }

  Status step(Cache& cache, AttentionBackend& backend, std::span<const EngineInput> inputs,
              MatrixView<float> logits) override {
    return run(cache, backend, inputs, logits, /*wants_states=*/false);
  }
  int n_embd() const override { return options_.device == nullptr ? hparams_.n_embd : 0; }
  Status embed(Cache& cache, AttentionBackend& backend, const EngineInput& input,
               MatrixView<float> states) override {
    return run(cache, backend, {&input, 1}, states, /*wants_states=*/true);
  }

 private:
  Status run(Cache& cache, AttentionBackend& backend, std::span<const EngineInput> inputs,
             MatrixView<float> outputs, bool wants_states) {
    if (options_.stop != nullptr && *options_.stop) return error("interrupted");
    std::vector<StepSlice> slices;
    for (const EngineInput& input : inputs) {
      KVANT_RETURN_IF_ERROR(check(input));
      KVANT_CHECK(input.short_rope == inputs.front().short_rope, "a step with two kinds of RoPE");
      slices.push_back({input.sequence, static_cast<int>(input.tokens.size()), input.is_prompt});
    }
    auto reserved = cache.reserve(std::move(slices));
    if (!reserved.ok()) return reserved.error();
    Step& step = **reserved;
    gather_rows(step, inputs);
    const bool short_rope =
        !inputs.empty() && inputs.front().short_rope && weights_->has_short_rope_factors();
    const ForwardRows rows{tokens_, positions_, logit_rows_, short_rope, wants_states};
    KVANT_RETURN_IF_ERROR(executor_->run(step, backend, rows, outputs));
    return step.commit();
  }

  std::unique_ptr<Executor> make_executor(DeviceProducts products) const {
    if (options_.device == nullptr) return std::make_unique<Forward>(hparams_, *weights_, options_.n_threads);
    return std::make_unique<DeviceExecutor>(hparams_, *weights_, options_.device, products,
                                            options_.n_threads);
  }

  Status check(const EngineInput& input) const {
    if (input.tokens.empty())
      return error("a step without tokens for sequence {}: nothing to do", input.sequence);
    KVANT_CHECK(input.first_logits >= 0 && input.first_logits <= static_cast<int>(input.tokens.size()),
                "logits of tokens that are not there");
    for (const std::int32_t token : input.tokens) {
      if (token < 0 || token >= hparams_.n_vocab) {
        return error("token {} is not in the model's vocabulary of {}", token, hparams_.n_vocab);
      }
    }
    return {};
  }

  // Collects the rows in batch order: all tokens of the first input, then all tokens of the second, and so
  // on.
  void gather_rows(const Step& step, std::span<const EngineInput> inputs) {
    tokens_.clear();
    positions_.clear();
    logit_rows_.clear();
    for (std::size_t s = 0; s < inputs.size(); ++s) {
      const auto& tokens = inputs[s].tokens;
      for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
        if (i >= inputs[s].first_logits) logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()));
        tokens_.push_back(tokens[i]);
        positions_.push_back(step.first_token(static_cast<int>(s)) + inputs[s].position_offset + i);
      }
    }
  }

  std::shared_ptr<GgufFile> file_;
  Hparams hparams_;
  Geometry geometry_;
  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  const EngineOptions options_;
  std::unique_ptr<Executor> executor_;
  std::vector<std::int32_t> tokens_, positions_, logit_rows_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::load(const std::string& path, const EngineOptions& options) {
  KVANT_CHECK(options.n_threads > 0, "an engine without threads");
  KVANT_RETURN_IF_ERROR(check_processor());
  auto file = GgufFile::open(path);
  if (!file.ok()) return file.error();
  auto hparams = read_hparams(**file, options.context);
  if (!hparams.ok()) return hparams.error();
  if (options.device != nullptr)
    KVANT_RETURN_IF_ERROR(DeviceGraph::check(*hparams, options.device->backend()));
  DeviceWeights on_device;
  if (options.device != nullptr) {
    ggml_backend* backend = options.device->backend();
    on_device.memory = ggml_backend_get_default_buffer_type(backend);
    on_device.host_memory = ggml_backend_dev_host_buffer_type(ggml_backend_get_device(backend));
    on_device.n_host_layers = std::max(hparams->n_layers - options.device_layers, 0);
  }
  auto weights = Weights::load(*file, *hparams, options.weights, options.n_threads, on_device);
  if (!weights.ok()) return weights.error();
  auto tokenizer = Tokenizer::load(path);
  if (!tokenizer.ok()) return tokenizer.error();
  return std::unique_ptr<Engine>(std::make_unique<GgufEngine>(*file, std::move(*hparams), std::move(*weights),
                                                              std::move(*tokenizer), options));
}

}  // namespace kvant
