// Engine: a GGUF model whose attention runs on a kvant cache.
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
  f32,        // dequantized to F32: exact, and a faster prompt path for some types (evaluations)
};

struct EngineOptions {
  int n_threads = 2;
  WeightMode weights = WeightMode::as_stored;
  int context = 0;  // tokens that a sequence may reach; 0: the trained context. Phi-3's RoPE depends on it.
  // What runs the model, and keeps the caches whose plans it was asked for; null: the CPU.
  std::shared_ptr<ComputeDevice> device = nullptr;
  const std::atomic<bool>* stop = nullptr;  // once true, steps are refused with the error "interrupted"
  // Layers whose matrices lie in the device's memory: the last ones. Those of the others stay in the host's,
  // where the device reads them in every step: for models that are larger than its memory.
  int device_layers = std::numeric_limits<int>::max();
};

// The new tokens of one sequence in a step, and the rows whose logits are wanted.
struct EngineInput {
  SequenceId sequence = 0;
  std::span<const std::int32_t> tokens;
  bool is_prompt = false;
  int first_logits = 0;  // logits of tokens [first_logits, tokens.size()); == tokens.size(): none
  // Added to the tokens' positions for RoPE alone: calibration sees far positions in short samples.
  int position_offset = 0;
  // The sequence stays within Engine::short_rope_context() tokens; the same in all its steps, and of all
  // inputs of a step.
  bool short_rope = false;
};

class Tokenizer;

class Engine {
 public:
  // Loads the model. Errors: see GgufFile; an unsupported architecture or attention kind (the message
  // lists the supported ones); a missing or misshapen tensor; out of memory.
  static Result<std::unique_ptr<Engine>> load(const std::string& path, const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const Geometry& geometry() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual int n_vocab() const = 0;
  virtual std::string description() const = 0;    // "llama 135M Q4_1"
  virtual std::int64_t weight_bytes() const = 0;  // in memory
  // Of these, what a device reads where it lies in the host's memory (EngineOptions::device_layers).
  virtual std::int64_t host_weight_bytes() const = 0;
  // Of the file (GgufFile::content_hash), and whether the engine balances its norms (query_key_balance.h).
  virtual std::string fingerprint() const = 0;
  virtual ModelParts parts() const = 0;
  // LongRoPE (Ding et al. 2024) has factors for sequences of up to so many tokens, and others for longer
  // ones, which the engine's context is. 0: the model has no choice.
  virtual int short_rope_context() const { return 0; }
  // Sequences that may get a token in one step so that each gets the bits that it would get alone. Tries
  // products: not for every step.
  virtual int independent_sequences() const = 0;
  // On a device: an engine with the same weights there that multiplies in F32, whatever their types, which
  // it expands as it needs them. Slower, and for what rounding would hide: ggml's kernels for quantized
  // weights round activations to 8 bits. It outlives this one's steps, not its device. Null: on the CPU.
  virtual std::unique_ptr<Engine> in_f32() const { return nullptr; }

  // Runs one step of `inputs` through the model on `cache` with `backend`, and commits it. On a device, cache
  // and backend are its own (cache/device_layout.h, attention/device_backend.h), or, of models without
  // recurrent states, both the CPU's, which attends then. `logits` gets one row of
  // n_vocab for every wanted token, in input order; rows must match. On an error the cache is as before.
  virtual Status step(Cache& cache, AttentionBackend& backend, std::span<const EngineInput> inputs,
                      MatrixView<float> logits) = 0;

  // The width of hidden states; 0: this engine shows none, as on a device.
  virtual int n_embd() const { return 0; }
  // A step of one sequence for the hidden states of its tokens instead of logits: [tokens, n_embd], after the
  // last norm. Requires n_embd() > 0.
  virtual Status embed(Cache&, AttentionBackend&, const EngineInput&, MatrixView<float>) {
    return error("this engine shows no hidden states");
  }
};

}  // namespace kvant
