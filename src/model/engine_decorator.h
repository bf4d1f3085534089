// EngineDecorator wraps an engine, for tests. Derived classes change some of its functions.
#pragma once

#include "model/engine.h"

namespace kvant {

class EngineDecorator : public Engine {
 public:
  // `engine` must outlive the object.
  explicit EngineDecorator(Engine& engine) : engine_(engine) {}

  const Geometry& geometry() const override { return engine_.geometry(); }
  const Tokenizer& tokenizer() const override { return engine_.tokenizer(); }
  int n_vocab() const override { return engine_.n_vocab(); }
  std::string description() const override { return engine_.description(); }
  std::int64_t weight_bytes() const override { return engine_.weight_bytes(); }
  std::int64_t host_weight_bytes() const override { return engine_.host_weight_bytes(); }
  std::string fingerprint() const override { return engine_.fingerprint(); }
  ModelParts parts() const override { return engine_.parts(); }
  int short_rope_context() const override { return engine_.short_rope_context(); }
  int independent_sequences() const override { return engine_.independent_sequences(); }
  Status step(Cache& cache, AttentionBackend& backend, std::span<const EngineInput> inputs,
              MatrixView<float> logits) override {
    return engine_.step(cache, backend, inputs, logits);
  }

 private:
  Engine& engine_;
};

}  // namespace kvant
