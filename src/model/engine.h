// Engine is a GGUF model whose attention runs on a kvant cache.
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
  as_stored,  // the file's types; repacked where ggml has a faster layout
  f32,        // dequantized to F32: exact, and faster at prefill for some types (for evaluations)
};

struct EngineOptions {
  int n_threads = 2;
  WeightMode weights = WeightMode::as_stored;
  int context = 0;  // tokens that a sequence may reach; 0: the trained context. Phi-3's RoPE depends on it.
  // The device that runs the model and may keep its caches; null: the CPU.
  std::shared_ptr<ComputeDevice> device = nullptr;
  const std::atomic<bool>* stop = nullptr;  // when true, steps fail with the error "interrupted"
  // Number of layers, counted from the last, whose matrices lie in the device's memory. The others stay in
  // host memory, where the device reads them in every step. That serves models larger than its memory.
  int device_layers = std::numeric_limits<int>::max();
};

// The new tokens of one sequence in a step, and which of their logits are wanted.
struct EngineInput {
  SequenceId sequence = 0;
  std::span<const std::int32_t> tokens;
  bool is_prompt = false;
  int first_logits = 0;  // logits of tokens [first_logits, tokens.size()); == tokens.size(): none
  // Added to the tokens' positions for RoPE only. It shows calibration far positions in short samples.
  int position_offset = 0;
  // The sequence stays within Engine::short_rope_context() tokens. It must be the same in all steps of a
  // sequence, and for all inputs of a step.
  bool short_rope = false;
};

class Tokenizer;

class Engine {
 public:
  // Loads the model. Errors: those of GgufFile; an unsupported architecture or kind of attention (the message
  // lists the supported ones); a missing or misshapen tensor; out of memory.
  static Result<std::unique_ptr<Engine>> load(const std::string& path, const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const Geometry& geometry() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual int n_vocab() const = 0;
  virtual std::string description() const = 0;    // "llama 135M Q4_1"
  virtual std::int64_t weight_bytes() const = 0;  // bytes in memory
  // Returns the part of them that a device reads from host memory (EngineOptions::device_layers).
  virtual std::int64_t host_weight_bytes() const = 0;
  // Identifies the file (GgufFile::content_hash), and whether the engine balances its norms
  // (query_key_balance.h).
  virtual std::string fingerprint() const = 0;
  virtual ModelParts parts() const = 0;
  // LongRoPE (Ding et al. 2024) has factors for sequences of up to this many tokens, and others for longer
  // ones. The engine's context is longer. 0: the model has no choice.
  virtual int short_rope_context() const { return 0; }
  // Returns how many sequences can share a step without a change in any bit. It tries products, so do not
  // call it in every step.
  virtual int independent_sequences() const = 0;
  // Returns an engine with the same weights on the device that multiplies in F32 and expands other types as
  // needed. It is slower, but shows what rounding would hide: ggml's kernels for quantized weights round
  // activations to 8 bits. It must not outlive the device. Null: on the CPU.
  virtual std::unique_ptr<Engine> in_f32() const { return nullptr; }

  // Runs one step of `inputs` on `cache` with `backend`, and commits it. On a device, both are the device's,
  // or, for models without recurrent states, the CPU's, which then attends. `logits` gets a row of n_vocab
  // for every wanted token, in input order. On an error the cache is unchanged.
  virtual Status step(Cache& cache, AttentionBackend& backend, std::span<const EngineInput> inputs,
                      MatrixView<float> logits) = 0;

  // The width of hidden states; 0: this engine returns none, for example on a device.
  virtual int n_embd() const { return 0; }
  // Runs a step of one sequence and returns the hidden states of its tokens instead of logits: [tokens,
  // n_embd], after the last norm. Requires n_embd() > 0.
  virtual Status embed(Cache&, AttentionBackend&, const EngineInput&, MatrixView<float>) {
    return error("this engine shows no hidden states");
  }
};

}  // namespace kvant
