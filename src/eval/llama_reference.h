// llama.cpp with its own KV cache as a source of predictions: a reference and a baseline.
#pragma once

#include <memory>
#include <string>

#include "base/geometry.h"
#include "eval/logit_source.h"
#include "model/compute_device.h"

namespace kvant {

// Whether a row's name selects llama.cpp: "llama.cpp:TYPE" or "llama.cpp:KTYPE/VTYPE", optionally followed by
// "-plain" for the graph without flash attention.
bool names_llama(const std::string& name);
// Returns an error if the name asks for something that llama.cpp does not have. Requires names_llama(name).
Status check_llama_name(const std::string& name);

// Describes where llama.cpp's model runs.
struct LlamaPlace {
  const ComputeDevice* device = nullptr;  // null: the CPU; otherwise it must outlive the reference
  bool kv_offload = true;  // whether the cache is stored with the model; if not, the CPU attends
  Geometry geometry;       // of the model; used only with a device
};

class LlamaReference {
 public:
  // Loads a GGUF model with all weights dequantized to F32, through a temporary file that is deleted before
  // it returns. Errors: an unreadable file, disk full, a model that llama.cpp refuses.
  static Result<std::unique_ptr<LlamaReference>> load_f32(const std::string& path,
                                                          const LlamaPlace& place = {});
  virtual ~LlamaReference() = default;
  // Makes the row called `name`, for chunks of `context` tokens; at most step_tokens run at a time.
  virtual Result<std::unique_ptr<LogitSource>> source(const std::string& name, int context, int step_tokens,
                                                      int n_threads) const = 0;
};

}  // namespace kvant
