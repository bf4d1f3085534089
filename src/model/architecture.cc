#include "model/architecture.h"

namespace kvant {
namespace {

// The facts are llama.cpp's, which the tests compare with. It ignores the sliding window of llama (Mistral
// 7B v0.1), qwen2 and phi3 files, and so does kvant.
constexpr Architecture kArchitectures[] = {
    {.name = "gemma2",
     .rope_neox = true,
     .qk_norm = false,
     .post_norms = true,
     .fused_gate_up = false,
     .scales_embedding = true,
     .activation = Activation::gelu,
     .sliding_period = 2,
     .default_window = 4096,
     .sliding_rope_base = 0,
     .default_score_softcap = 50,
     .default_logit_softcap = 30,
     .wide_query_layers = 46},
    {.name = "gemma3",
     .rope_neox = true,
     .qk_norm = true,
     .post_norms = true,
     .fused_gate_up = false,
     .scales_embedding = true,
     .activation = Activation::gelu,
     .sliding_period = 6,
     .default_window = 0,
     .sliding_rope_base = 10000,
     .default_score_softcap = 0,
     .default_logit_softcap = 0,
     .wide_query_layers = 62},
    {.name = "llama"},
    {.name = "phi3", .rope_neox = true, .fused_gate_up = true},
    {.name = "qwen2", .rope_neox = true},
    {.name = "qwen3", .rope_neox = true, .qk_norm = true},
};

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

const Architecture* find_architecture(const std::string& name) {
  for (const Architecture& a : kArchitectures) {
    if (name == a.name) return &a;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& a : kArchitectures) {
    if (!names.empty()) names += ", ";
    names += a.name;
  }
  return names;
}

}  // namespace kvant
