// llama.cpp itself, with its own KV cache, as a source of predictions: the oracle and the rival.
#pragma once

#include <memory>
#include <string>

#include "base/geometry.h"
#include "eval/logit_source.h"
#include "model/compute_device.h"

namespace kvant {

// Whether a row's name asks for llama.cpp: "llama.cpp:TYPE" or "llama.cpp:KTYPE/VTYPE", and
// "-plain" after them for the graph without flash attention.
bool names_llama(const std::string& name);
// An error when it names what llama.cpp has not. Requires names_llama(name).
Status check_llama_name(const std::string& name);

// What runs llama.cpp's model.
struct LlamaPlace {
  const ComputeDevice* device = nullptr;  // null: the CPU; else it outlives the reference
  bool kv_offload = true;                 // the cache lies where the model does; else the CPU attends
  Geometry geometry;                      // of the model; only read with a device
};

class LlamaReference {
 public:
  // The model of a GGUF file with all weights dequantized to F32, by way of a temporary file that is gone on
  // return. Errors: an unreadable file, disk full, a model that llama.cpp refuses.
  static Result<std::unique_ptr<LlamaReference>> load_f32(const std::string& path,
                                                          const LlamaPlace& place = {});
  virtual ~LlamaReference() = default;
  // The row called `name`, for chunks of `context` tokens, at most step_tokens run at a time.
  virtual Result<std::unique_ptr<LogitSource>> source(const std::string& name, int context, int step_tokens,
                                                      int n_threads) const = 0;
};

}  // namespace kvant
