// Engine is a GGUF model whose attention uses a kvant cache. The engine runs a step of many sequences at a
// time, on the CPU or on a device, and knows nothing of requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/geometry.h"
#include "base/matrix_view.h"
#include "base/result.h"
#include "cache/cache.h"
#include "model/model_parts.h"

namespace kvant {

class ComputeDevice;

enum class WeightMode : std::uint8_t {
  as_stored,  // weights have the file's types, repacked if ggml has a faster layout
  f32,        // weights are dequantized to F32, which is exact, and for some types faster in prefill; for
              // evaluations
};

struct EngineOptions {
  int n_threads = 2;
  WeightMode weights = WeightMode::as_stored;
  // A sequence may have at most this many tokens. 0 means the trained context. Phi-3's RoPE depends on this
  // number.
  int context = 0;
  // `device` runs the model and may keep its caches. Null means the CPU.
  std::shared_ptr<ComputeDevice> device = nullptr;
  const std::atomic<bool>* stop = nullptr;  // once true, steps fail with the error "interrupted"
  // The matrices of this many layers, counted from the last, lie in the device's memory. The matrices of the
  // other layers stay in host memory, where the device reads them in every step. A smaller number lets the
  // device run models that are larger than the device's memory.
  int device_layers = std::numeric_limits<int>::max();
};

// EngineInput holds the new tokens of one sequence in a step, and says which of their logits are wanted.
struct EngineInput {
  SequenceId sequence = 0;
  std::span<const std::int32_t> tokens;
  bool is_prompt = false;
  int first_logits = 0;  // tokens [first_logits, tokens.size()) get logits; tokens.size() means none
  // This number is added to the tokens' positions, for RoPE only. With the offset, short samples give
  // calibration the queries and keys of far positions.
  int position_offset = 0;
  // The sequence will stay within Engine::short_rope_context() tokens. The value must be the same in all
  // steps of a sequence, and for all inputs of a step.
  bool short_rope = false;
};

class Tokenizer;

class Engine {
 public:
  // Loads the model. Returns the errors of GgufFile, and an error if a tensor is missing or misshapen or
  // memory is exhausted. If an architecture or kind of attention is unsupported, the error lists what is
  // supported.
  static Result<std::unique_ptr<Engine>> load(const std::string& path, const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const Geometry& geometry() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual int n_vocab() const = 0;
  virtual std::string description() const = 0;    // such as "llama 135M Q4_1"
  virtual std::int64_t weight_bytes() const = 0;  // bytes in memory
  // Returns how many of the weight bytes a device reads from host memory (EngineOptions::device_layers).
  virtual std::int64_t host_weight_bytes() const = 0;
  // Identifies the file (GgufFile::content_hash), and whether the engine balances the norms of queries and
  // keys (query_key_balance.h).
  virtual std::string fingerprint() const = 0;
  virtual ModelParts parts() const = 0;
  // Returns the number of tokens up to which a sequence uses LongRoPE's factors for short sequences (Ding et
  // al. 2024). Returns 0 if the model has only one set of factors, or if the engine's context needs only one.
  virtual int short_rope_context() const { return 0; }
  // Returns how many sequences can share a step without changing any bit of one another's results. The
  // function tries products, so do not call it in every step.
  virtual int independent_sequences() const = 0;
  // Returns an engine with the same weights on the device, which multiplies in F32 and expands other types as
  // needed. The returned engine is slow but exact, while ggml's kernels for quantized weights round
  // activations to 8 bits. The result must not outlive the device. Returns null on the CPU.
  virtual std::unique_ptr<Engine> in_f32() const { return nullptr; }

  // Runs one step of `inputs` on `cache` and commits it. The cache and the backend must be the device's. A
  // model without recurrent states may instead have the CPU's cache and backend, which then attends. `logits`
  // gets a row [n_vocab] for every wanted token, in input order. After an error, the cache is unchanged.
  virtual Status step(Cache& cache, AttentionBackend& backend, std::span<const EngineInput> inputs,
                      MatrixView<float> logits) = 0;

  // Returns the width of hidden states, or 0 if the engine cannot return them, for example on a device.
  virtual int n_embd() const { return 0; }
  // Runs a step of one sequence. Returns the hidden states of its tokens in place of logits, after the last
  // norm, [tokens, n_embd]. Requires n_embd() > 0.
  virtual Status embed(Cache&, AttentionBackend&, const EngineInput&, MatrixView<float>) {
    return error("this engine shows no hidden states");
  }
};

}  // namespace kvant
