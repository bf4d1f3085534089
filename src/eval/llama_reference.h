// Lets llama.cpp predict tokens with its own KV cache types. Evaluations use such rows as a reference and as
// a baseline. Weights are dequantized to F32 first, so rows differ only in their caches.
#pragma once

#include <memory>
#include <string>

#include "base/geometry.h"
#include "eval/logit_source.h"
#include "model/compute_device.h"

namespace kvant {

// Returns whether a row's name selects llama.cpp. llama.cpp's rows are called "llama.cpp:TYPE" or
// "llama.cpp:KTYPE/VTYPE". A suffix "-plain" selects the graph without flash attention.
bool names_llama(const std::string& name);
// Returns an error if llama.cpp does not have the types in the name. names_llama(name) must be true.
Status check_llama_name(const std::string& name);

// Says where llama.cpp's model runs and where its cache lies.
struct LlamaPlace {
  // Null means the CPU. A device must outlive the reference.
  const ComputeDevice* device = nullptr;
  // If true, the cache lies with the model. Otherwise, the cache lies in host memory and the CPU attends.
  bool kv_offload = true;
  // Describes the model. The CPU does not need this description.
  Geometry geometry;
};

class LlamaReference {
 public:
  // Loads a GGUF model with all weights dequantized to F32. The dequantized copy is a temporary file, which
  // is deleted before the function returns. Returns an error for an unreadable file, a full disk, or a model
  // that llama.cpp refuses.
  static Result<std::unique_ptr<LlamaReference>> load_f32(const std::string& path,
                                                          const LlamaPlace& place = {});
  virtual ~LlamaReference() = default;
  // Makes the row called `name` for chunks of `context` tokens. At most step_tokens tokens run in a step.
  virtual Result<std::unique_ptr<LogitSource>> source(const std::string& name, int context, int step_tokens,
                                                      int n_threads) const = 0;
};

}  // namespace kvant
