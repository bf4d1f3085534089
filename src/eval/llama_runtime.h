// Wraps llama.cpp's models and contexts for evaluations and benchmarks. Errors are Results, and owning
// pointers free what llama.cpp allocates.
#pragma once

#include <llama.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"

namespace kvant {

// Holds the element types of a llama.cpp cache and the choice of the attention graph.
struct LlamaCacheTypes {
  ggml_type k = GGML_TYPE_F16;
  ggml_type v = GGML_TYPE_F16;
  // If true, flash attention is disabled. Otherwise llama.cpp chooses, and on CPUs it chooses flash
  // attention.
  bool plain = false;
};
// Parses "q8_0" or "q8_0/q4_0" (K/V), optionally followed by "-plain". The error for an unknown type lists
// llama.cpp's types.
Result<LlamaCacheTypes> parse_llama_types(const std::string& text);
// Returns the mean of the bits per value of K and V.
double bits_per_element(const LlamaCacheTypes& types);

struct LlamaFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
  void operator()(llama_context* context) const { llama_free(context); }
};
using LlamaModelPointer = std::shared_ptr<llama_model>;
using LlamaContextPointer = std::unique_ptr<llama_context, LlamaFree>;

// Loads a GGUF file with llama.cpp on the CPU, or completely on a device of ggml. Returns an error if
// llama.cpp refuses the file.
Result<LlamaModelPointer> load_llama_model(const std::string& path, ggml_backend_dev_t device = nullptr);
// Returns an error if the row called `name` needs llama.cpp's flash attention but the device cannot run it
// with the cache types.
Status check_flash_attention(const std::string& name, ggml_backend_dev_t device, const Geometry& geometry,
                             const LlamaCacheTypes& types);

struct LlamaContextOptions {
  LlamaCacheTypes types;
  int context = 0;        // tokens of all sequences together
  int step_tokens = 512;  // largest batch, in tokens
  int n_sequences = 1;
  // If true, all sequences share the cells of the cache. Otherwise each sequence has its own part.
  bool shares_cells = true;
  // If true, operations run on the model's device, except attention if kv_offload is false.
  bool on_device = false;
  // If true, the cache and attention are also on the model's device. Otherwise both stay on the CPU.
  bool kv_offload = true;
  int n_threads = 2;
};
// Makes a context. `notes` may be null, and otherwise receives the lines of llama.cpp's log about the
// rotation of K and V. llama.cpp rotates K and V automatically before quantization (its pull request 21038).
Result<LlamaContextPointer> make_llama_context(llama_model& model, const LlamaContextOptions& options,
                                               std::vector<std::string>* notes);

// Runs `tokens` at positions [first, first + n) of sequence 0, with logits for the last n_logits tokens.
// Returns llama.cpp's error code in a sentence if the run fails.
Status llama_run(llama_context& context, std::span<const std::int32_t> tokens, int first, int n_logits);
// Runs one token at `position` in each of the sequences 0 to n - 1, with logits for all n tokens.
Status llama_run_each(llama_context& context, std::span<const std::int32_t> tokens, int position);

}  // namespace kvant
