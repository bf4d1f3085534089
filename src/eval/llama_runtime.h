// llama.cpp's models and contexts, with errors as Results and owning pointers.
#pragma once

#include <llama.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"

namespace kvant {

// The element types of a llama.cpp cache, and the graph that attends to it.
struct LlamaCacheTypes {
  ggml_type k = GGML_TYPE_F16;
  ggml_type v = GGML_TYPE_F16;
  bool plain = false;  // without flash attention; otherwise llama.cpp chooses, and uses it on CPUs
};
// Parses "q8_0" or "q8_0/q4_0" (K/V), optionally followed by "-plain". An error lists the types that
// llama.cpp has.
Result<LlamaCacheTypes> parse_llama_types(const std::string& text);
// Returns the bits per value, averaged over K and V.
double bits_per_element(const LlamaCacheTypes& types);

struct LlamaFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
  void operator()(llama_context* context) const { llama_free(context); }
};
using LlamaModelPointer = std::shared_ptr<llama_model>;
using LlamaContextPointer = std::unique_ptr<llama_context, LlamaFree>;

// Loads a GGUF with llama.cpp on the CPU, or completely on a device of ggml. Returns an error if llama.cpp
// refuses the file.
Result<LlamaModelPointer> load_llama_model(const std::string& path, ggml_backend_dev_t device = nullptr);
// Returns an error if the row called `name` needs llama.cpp's flash attention and the device cannot run it
// with these types.
Status check_flash_attention(const std::string& name, ggml_backend_dev_t device, const Geometry& geometry,
                             const LlamaCacheTypes& types);

struct LlamaContextOptions {
  LlamaCacheTypes types;
  int context = 0;        // total tokens
  int step_tokens = 512;  // maximum batch size
  int n_sequences = 1;
  bool shares_cells = true;  // sequences share all cells of the cache; otherwise each has its own part
  bool on_device = false;    // whether all operations run where the model is
  bool kv_offload = true;    // whether the cache and attention do too; otherwise both stay on the CPU
  int n_threads = 2;
};
// Makes a context. `notes` (may be null) gets the lines of llama.cpp's log about rotating K and V before
// quantization (llama.cpp pull request 21038: automatic).
Result<LlamaContextPointer> make_llama_context(llama_model& model, const LlamaContextOptions& options,
                                               std::vector<std::string>* notes);

// Runs `tokens` at positions [first, first + n) of sequence 0, with logits for the last n_logits of them. An
// error is llama.cpp's.
Status llama_run(llama_context& context, std::span<const std::int32_t> tokens, int first, int n_logits);
// Runs a token at `position` of each of the sequences 0 to n - 1, with logits for all.
Status llama_run_each(llama_context& context, std::span<const std::int32_t> tokens, int position);

}  // namespace kvant
