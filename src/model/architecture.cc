#include "model/architecture.h"

namespace kvant {
namespace {

// The facts are llama.cpp's, which the tests compare with. It ignores the sliding window of llama (Mistral
// 7B v0.1), qwen2 and phi3 files, and so does kvant. Of pictures' models (qwen2vl, qwen3vl, qwen35, some
// glm4) text alone is read, whose positions in time, height and width are the same: then their RoPE is the
// plain one.
constexpr Architecture kArchitectures[] = {
    {.name = "arcee", .ungated = true, .activation = Activation::relu_squared},
    {.name = "bailingmoe2",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .gating = Gating::sigmoid},
    {.name = "chatglm", .fused_gate_up = true},
    {.name = "cohere2",
     .layer_norm = true,
     .parallel = true,
     .logit_scale = LogitScale::multiplies,
     .rotated = RotatedLayers::sliding,
     .sliding_period = 4},
    {.name = "command-r",
     .layer_norm = true,
     .qk_norm = QkNorm::heads,
     .parallel = true,
     .logit_scale = LogitScale::multiplies},
    {.name = "deepseek"},
    {.name = "dots1",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .gating = Gating::sigmoid},
    {.name = "ernie4_5"},
    {.name = "ernie4_5-moe", .normalizes_experts = true},
    {.name = "exaone", .rope_neox = true},
    {.name = "exaone4",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .norms = BlockNorms::after,
     .rotated = RotatedLayers::sliding,
     .sliding_period = 4,
     .default_window = 4096,
     .sliding_member = 64},
    {.name = "gemma", .rope_neox = true, .activation = Activation::gelu, .scales_embedding = true},
    {.name = "gemma2",
     .rope_neox = true,
     .norms = BlockNorms::around,
     .activation = Activation::gelu,
     .scales_embedding = true,
     .sliding_period = 2,
     .default_window = 4096,
     .default_score_softcap = 50,
     .default_logit_softcap = 30,
     .wide_query_layers = 46},
    {.name = "gemma3",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .norms = BlockNorms::around,
     .activation = Activation::gelu,
     .scales_embedding = true,
     .sliding_period = 6,
     .sliding_rope_base = 10000,
     .wide_query_layers = 62},
    {.name = "gemma4",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .norms = BlockNorms::around,
     .activation = Activation::gelu,
     .scales_embedding = true,
     .sliding_period = 6,
     .sliding_rope_base = 10000,
     .shares_kv = true,
     .heads_by_layer = true,
     .unscaled_scores = true,
     .normed_values = true,
     .full_rope_factors = true,
     .layer_scales = true,
     .experts_beside = true,
     .normalizes_experts = true},
    {.name = "glm4", .sections_neox = true, .norms = BlockNorms::around, .fused_gate_up = true},
    {.name = "glm4moe",
     .ffn_norm = "post_attention_norm",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .gating = Gating::sigmoid},
    {.name = "gpt-oss",
     .ffn_norm = "post_attention_norm",
     .rope_neox = true,
     .activation = Activation::clipped_silu,
     .sliding_period = 2,
     .sinks = true,
     .gating = Gating::softmax_of_chosen},
    {.name = "granite", .has_scales = true, .logit_scale = LogitScale::divides, .normalizes_experts = true},
    {.name = "granitemoe",
     .has_scales = true,
     .logit_scale = LogitScale::divides,
     .normalizes_experts = true},
    {.name = "hunyuan-dense", .rope_neox = true, .qk_norm = QkNorm::rotated_heads, .needs_qk_norm = true},
    {.name = "hunyuan-moe",
     .rope_neox = true,
     .qk_norm = QkNorm::rotated_heads,
     .needs_qk_norm = true,
     .normalizes_experts = true},
    {.name = "internlm2"},
    {.name = "llama", .normalizes_experts = true},
    {.name = "mistral3", .temperature = true, .normalizes_experts = true},
    {.name = "nemotron",
     .rope_neox = true,
     .layer_norm = true,
     .ungated = true,
     .activation = Activation::relu_squared},
    {.name = "olmo2",
     .rope_neox = true,
     .qk_norm = QkNorm::rows,
     .needs_qk_norm = true,
     .norms = BlockNorms::after,
     .sliding_period = 4,
     .sliding_rope_unscaled = true},
    {.name = "olmoe", .rope_neox = true, .qk_norm = QkNorm::rows, .needs_qk_norm = true},
    {.name = "phi2",
     .rope_neox = true,
     .layer_norm = true,
     .parallel = true,
     .ungated = true,
     .activation = Activation::gelu},
    {.name = "phi3", .rope_neox = true, .fused_gate_up = true},
    {.name = "qwen2", .rope_neox = true},
    {.name = "qwen2moe", .rope_neox = true},
    {.name = "qwen2vl", .rope_neox = true},
    {.name = "qwen3", .rope_neox = true, .qk_norm = QkNorm::heads, .needs_qk_norm = true},
    {.name = "qwen35",
     .ffn_norm = "post_attention_norm",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .gated_attention = true,
     .recurrence = Recurrence::delta_net},
    {.name = "qwen35moe",
     .ffn_norm = "post_attention_norm",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .gated_attention = true,
     .recurrence = Recurrence::delta_net,
     .normalizes_experts = true},
    {.name = "qwen3moe",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .normalizes_experts = true},
    {.name = "qwen3next",
     .ffn_norm = "post_attention_norm",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .gated_attention = true,
     .recurrence = Recurrence::grouped_delta_net,
     .normalizes_experts = true},
    {.name = "qwen3vl", .rope_neox = true, .qk_norm = QkNorm::heads, .needs_qk_norm = true},
    {.name = "qwen3vlmoe",
     .rope_neox = true,
     .qk_norm = QkNorm::heads,
     .needs_qk_norm = true,
     .normalizes_experts = true},
    {.name = "seed_oss", .ffn_norm = "post_attention_norm", .rope_neox = true},
    {.name = "smollm3", .rotated = RotatedLayers::all_but_every_fourth},
    {.name = "stablelm", .rope_neox = true, .layer_norm = true, .qk_norm = QkNorm::heads, .parallel = true},
    {.name = "starcoder2",
     .rope_neox = true,
     .layer_norm = true,
     .ungated = true,
     .activation = Activation::gelu},
};

struct Unsupported {
  const char* name;
  const char* layers;
};

constexpr const char* kDeltaNet = "layers of Kimi's delta attention, whose state is no KV cache";
constexpr const char* kMamba = "Mamba layers, whose state is no KV cache";
constexpr const char* kLatent = "multi-head latent attention (MLA)";
constexpr const char* kConvolutions = "layers of short convolutions, whose state is no KV cache";
constexpr const char* kSharedCache = "layers that attend to another layer's cache";

constexpr Unsupported kUnsupported[] = {
    {"kimi-linear", kDeltaNet}, {"mamba", kMamba},          {"mamba2", kMamba},
    {"jamba", kMamba},          {"falcon-h1", kMamba},      {"granitehybrid", kMamba},
    {"nemotron_h", kMamba},     {"nemotron_h_moe", kMamba}, {"deepseek2", kLatent},
    {"deepseek32", kLatent},    {"minicpm3", kLatent},      {"plm", kLatent},
    {"glm-dsa", kLatent},       {"mistral4", kLatent},      {"lfm2", kConvolutions},
    {"lfm2moe", kConvolutions}, {"gemma3n", kSharedCache},  {"llama4", "layers that attend within chunks"},
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

const char* unsupported_layers(const std::string& name) {
  for (const Unsupported& u : kUnsupported) {
    if (name == u.name) return u.layers;
  }
  return nullptr;
}

}  // namespace kvant
