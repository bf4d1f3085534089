// Lists tiny models of every architecture for tests, in the shapes of common models. Tests compare the engine
// with llama.cpp on each of them.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "model/tiny_model.h"

namespace kvant {

// Variant is one architecture in one shape.
struct Variant {
  const char* name;
  TinyModel model;
};
inline void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

inline TinyModel model_of(const std::vector<Variant>& variants, const std::string& name) {
  return std::find_if(variants.begin(), variants.end(), [&](const Variant& v) { return v.name == name; })
      ->model;
}

inline std::vector<Variant> variants() {
  TinyModel qwen2{.architecture = "qwen2", .n_embd = 256, .qkv_bias = true, .tied = true};
  TinyModel qwen3{.architecture = "qwen3", .n_heads = 6, .head_dim = 128, .qk_norm = true};
  TinyModel phi3{.architecture = "phi3",
                 .n_embd = 192,
                 .n_heads = 2,
                 .n_kv_heads = 2,
                 .head_dim = 96,
                 .fused_qkv = true,
                 .fused_gate_up = true};
  TinyModel phi3_long = phi3;
  phi3_long.n_rot = 72;
  phi3_long.long_rope_factors = true;
  phi3_long.integers = {{"rope.scaling.original_context_length", 256}};
  phi3_long.numbers = {{"rope.scaling.attn_factor", 1.19F}};
  TinyModel phi3_short = phi3_long;
  phi3_short.integers = {{"rope.scaling.original_context_length", 1024}};
  TinyModel gemma2{.architecture = "gemma2", .n_layers = 4, .head_dim = 80, .post_norms = true, .tied = true};
  gemma2.integers = {{"attention.sliding_window", 100}};
  gemma2.numbers = {{"attn_logit_softcapping", 5.0F}, {"final_logit_softcapping", 7.0F}};
  TinyModel gemma2_defaults = gemma2;
  gemma2_defaults.integers = {};
  gemma2_defaults.numbers = {};
  TinyModel gemma3{
      .architecture = "gemma3", .n_layers = 7, .qk_norm = true, .post_norms = true, .tied = true};
  gemma3.integers = {{"attention.sliding_window", 48}};
  gemma3.numbers = {{"rope.freq_base", 1e6F}, {"rope.scaling.factor", 8.0F}};
  gemma3.texts = {{"rope.scaling.type", "linear"}};
  TinyModel gemma3_plain{.architecture = "gemma3", .qk_norm = true, .post_norms = true, .tied = true};
  TinyModel gemma3_wide = gemma3;
  gemma3_wide.head_dim = 256;
  TinyModel llama3;
  llama3.rope_freqs = true;
  llama3.numbers = {{"rope.freq_base", 5e5F}};
  TinyModel linear;
  linear.texts = {{"rope.scaling.type", "linear"}};
  linear.numbers = {{"rope.scaling.factor", 4.0F}};
  TinyModel yarn{.architecture = "qwen2", .n_embd = 256, .qkv_bias = true};
  yarn.texts = {{"rope.scaling.type", "yarn"}};
  yarn.numbers = {{"rope.scaling.factor", 4.0F}};
  yarn.integers = {{"rope.scaling.original_context_length", 128}};
  TinyModel yarn_llama = yarn;
  yarn_llama.architecture = "llama";
  yarn_llama.qkv_bias = false;
  yarn_llama.numbers["rope.scaling.attn_factor"] = 0.8F;
  yarn_llama.numbers["rope.scaling.yarn_beta_fast"] = 24.0F;
  TinyModel fused_llama;
  fused_llama.fused_qkv = true;
  return {{"llama", {}},
          {"llama_without_gqa_d80", {.n_embd = 160, .n_heads = 2, .n_kv_heads = 2, .head_dim = 80}},
          {"llama_tied", {.n_kv_heads = 1, .tied = true}},
          {"llama3_rope_freqs", llama3},
          {"llama_fused_qkv", fused_llama},
          {"llama_rope_linear", linear},
          {"llama_rope_yarn", yarn_llama},
          {"qwen2", qwen2},
          {"qwen2_rope_yarn", yarn},
          {"qwen3", qwen3},
          {"phi3", phi3},
          {"phi3_long_factors", phi3_long},
          {"phi3_short_factors", phi3_short},
          {"gemma2", gemma2},
          {"gemma2_defaults", gemma2_defaults},
          {"gemma3", gemma3},
          {"gemma3_d256", gemma3_wide},
          {"gemma3_without_sliding", gemma3_plain}};
}

// Returns models without experts that vary norms, biases, gates and scales.
inline std::vector<Variant> dense_variants() {
  const auto with = [](TinyModel model, const std::map<std::string, std::uint32_t>& integers,
                       const std::map<std::string, float>& numbers = {}) {
    model.integers = integers;
    model.numbers = numbers;
    return model;
  };
  const TinyModel layer_norms{.n_embd = 256, .qkv_bias = true, .layer_norm = true, .out_bias = true};
  TinyModel stablelm = layer_norms, stablelm_parallel = layer_norms, starcoder2 = layer_norms,
            phi2 = layer_norms, command_r = layer_norms, nemotron = layer_norms;
  stablelm.architecture = stablelm_parallel.architecture = "stablelm";
  stablelm.out_bias = stablelm_parallel.out_bias = false;
  stablelm.n_rot = stablelm_parallel.n_rot = 16;
  stablelm_parallel.ffn_norm = false;
  stablelm_parallel.qk_norm_of_each_head = true;
  starcoder2.architecture = "starcoder2";
  starcoder2.ungated = starcoder2.ffn_bias = true;
  phi2 = starcoder2;
  phi2.architecture = "phi2";
  phi2.n_rot = 32;
  phi2.ffn_norm = false;
  phi2.output_bias = true;
  nemotron = starcoder2;
  nemotron.architecture = "nemotron";
  nemotron.n_rot = 32;
  command_r = {.architecture = "command-r", .n_embd = 256, .layer_norm = true, .norm_biases = false};
  command_r.ffn_norm = false;
  command_r.tied = true;
  command_r.numbers = {{"logit_scale", 0.25F}};
  TinyModel cohere2 = command_r;
  cohere2.architecture = "cohere2";
  cohere2.n_layers = 5;
  cohere2.integers = {{"attention.sliding_window", 48}};
  const TinyModel granite = with({.architecture = "granite"}, {},
                                 {{"logit_scale", 0.5F},
                                  {"residual_scale", 0.4F},
                                  {"embedding_scale", 3.0F},
                                  {"attention.scale", 0.05F}});
  const TinyModel minicpm =
      with({.architecture = "minicpm"}, {},
           {{"logit_scale", 2.0F}, {"residual_scale", 0.4F}, {"embedding_scale", 3.0F}});
  TinyModel minicpm_long = minicpm;
  minicpm_long.long_rope_factors = true;
  minicpm_long.integers = {{"rope.scaling.original_context_length", 256}};
  minicpm_long.texts = {{"rope.scaling.type", "longrope"}};
  TinyModel olmo2{.architecture = "olmo2",
                  .n_embd = 256,
                  .qk_norm_of_rows = true,
                  .pre_norms = false,
                  .post_norms = true};
  TinyModel olmo3 =
      with(olmo2, {{"attention.sliding_window", 48}, {"rope.scaling.original_context_length", 128}},
           {{"rope.scaling.factor", 4.0F}});
  olmo3.n_layers = 5;
  olmo3.texts = {{"rope.scaling.type", "yarn"}};
  TinyModel exaone4{
      .architecture = "exaone4", .n_embd = 256, .qk_norm = true, .pre_norms = false, .post_norms = true};
  TinyModel exaone4_sliding = exaone4;
  exaone4_sliding.n_layers = 64;  // only this model of the family has windows
  exaone4_sliding.n_embd = 64;
  exaone4_sliding.head_dim = 16;
  exaone4_sliding.integers = {{"attention.sliding_window", 48}};
  TinyModel mistral3 = with({.architecture = "mistral3"}, {{"rope.scaling.original_context_length", 64}},
                            {{"attention.temperature_scale", 0.1F},
                             {"rope.scaling.factor", 16.0F},
                             {"rope.scaling.yarn_log_multiplier", 1.0F}});
  mistral3.texts = {{"rope.scaling.type", "yarn"}};
  // RoPE has sections for time, height and width, which are equal in text. In these models, every pair
  // belongs to a section, because llama.cpp does not rotate qwen3vl's pairs without one.
  TinyModel qwen2vl{.architecture = "qwen2vl", .n_embd = 256, .qkv_bias = true};
  TinyModel qwen3vl{.architecture = "qwen3vl", .qk_norm = true};
  qwen2vl.arrays = {{"rope.dimension_sections", {8, 12, 12, 0}}};
  qwen3vl.arrays = {{"rope.dimension_sections", {11, 11, 11, 0}}};
  const TinyModel seed_oss{
      .architecture = "seed_oss", .qkv_bias = true, .ffn_norm_name = "post_attention_norm"};
  TinyModel glm4{
      .architecture = "glm4", .n_rot = 32, .qkv_bias = true, .fused_gate_up = true, .post_norms = true};
  TinyModel glm4_with_sections = glm4;  // the model has the shape of GLM-4.1V
  glm4_with_sections.arrays = {{"rope.dimension_sections", {4, 6, 6, 0}}};
  return {{"arcee", {.architecture = "arcee", .ungated = true}},
          {"chatglm",
           {.architecture = "chatglm", .n_embd = 256, .n_rot = 32, .fused_qkv = true, .fused_gate_up = true}},
          {"cohere2", cohere2},
          {"command_r", command_r},
          {"ernie4_5", {.architecture = "ernie4_5"}},
          {"exaone", {.architecture = "exaone", .rope_freqs = true}},
          {"exaone4", exaone4},
          {"exaone4_sliding", exaone4_sliding},
          {"gemma", {.architecture = "gemma", .head_dim = 256, .tied = true}},
          {"glm4", glm4},
          {"glm4_with_sections", glm4_with_sections},
          {"granite", granite},
          {"hunyuan_dense",
           with({.architecture = "hunyuan-dense", .qk_norm = true}, {}, {{"rope.scaling.alpha", 50.0F}})},
          {"internlm2", {.architecture = "internlm2", .n_embd = 256}},
          {"minicpm", minicpm},
          {"minicpm_long_factors", minicpm_long},
          {"mistral3", mistral3},
          {"nemotron", nemotron},
          {"olmo2", olmo2},
          {"olmo3", olmo3},
          {"phi2", phi2},
          {"qwen2vl", qwen2vl},
          {"qwen3vl", qwen3vl},
          {"seed_oss", seed_oss},
          {"smollm3", {.architecture = "smollm3", .n_layers = 4}},
          {"stablelm", stablelm},
          {"stablelm_parallel", stablelm_parallel},
          {"starcoder2", starcoder2}};
}

// As in Gemma 4, heads have 256 channels in layers with a window and 512 channels in layers with full
// attention. The last layer has full attention.
inline TinyModel gemma4() {
  TinyModel model{.architecture = "gemma4", .n_layers = 3, .n_embd = 64, .n_kv_heads = 1, .head_dim = 512};
  model.sliding_head_dim = 256;
  model.sliding_n_kv_heads = 2;
  model.qk_norm_mean = 0.25F;  // scores are not divided by sqrt(head_dim)
  model.k_for_v = model.qk_norm = model.post_norms = model.layer_scales = model.unturned_pairs = model.tied =
      true;
  model.integers = {{"attention.sliding_window", 100}, {"embedding_length_per_layer_input", 0}};
  model.arrays = {{"attention.sliding_window_pattern", {1, 1, 0}}};
  model.numbers = {
      {"rope.freq_base", 1e6F}, {"rope.freq_base_swa", 1e4F}, {"final_logit_softcapping", 30.0F}};
  return model;
}

inline std::vector<Variant> variants_of_unlike_layers() {
  TinyModel wide_first = gemma4();  // the layers after the widest one are narrower
  wide_first.arrays["attention.sliding_window_pattern"] = {0, 1, 1};
  wide_first.k_for_v = wide_first.tied = false;
  TinyModel alike = gemma4();  // all layers have equally many KV heads
  alike.sliding_n_kv_heads = 0;
  alike.layer_scales = false;
  TinyModel one_size = gemma4();  // all layers have the same heads
  one_size.head_dim = one_size.sliding_head_dim = 64;
  one_size.sliding_n_kv_heads = 0;
  TinyModel e2b = gemma4();  // the last layers share caches, and all layers have embeddings of their own
  e2b.n_layers = 7;
  e2b.arrays["attention.sliding_window_pattern"] = {1, 1, 0, 1, 0, 1, 0};
  e2b.n_sharing = 4;
  e2b.n_layer_embd = 32;
  e2b.integers = {{"attention.sliding_window", 100}};
  e2b.sliding_n_kv_heads = 0;
  e2b.k_for_v = false;
  TinyModel e4b = e2b;  // all layers have the same heads, and the last layer has a window
  e4b.arrays["attention.sliding_window_pattern"] = {1, 1, 1, 0, 1, 0, 1};
  e4b.n_sharing = 3;
  e4b.head_dim = e4b.sliding_head_dim = 64;
  e4b.n_kv_heads = 2;
  e4b.layer_scales = false;
  return {{"gemma4", gemma4()},
          {"gemma4_e2b", e2b},
          {"gemma4_shared_alike", e4b},
          {"gemma4_wide_first", wide_first},
          {"gemma4_equal_kv_heads", alike},
          {"gemma4_equal_heads", one_size}};
}

inline std::vector<Variant> expert_variants() {
  const auto experts = [](const char* architecture, int n, int used) {
    TinyModel model{.architecture = architecture, .n_embd = 256, .n_experts = n};
    model.integers = {{"expert_used_count", used}};
    return model;
  };
  TinyModel mixtral = experts("llama", 4, 2), qwen2moe = experts("qwen2moe", 8, 3),
            qwen3moe = experts("qwen3moe", 8, 4), olmoe = experts("olmoe", 8, 2),
            glm4moe = experts("glm4moe", 8, 2), granitemoe = experts("granitemoe", 4, 2),
            ernie = experts("ernie4_5-moe", 8, 2), hunyuan = experts("hunyuan-moe", 4, 2),
            dots1 = experts("dots1", 8, 3), deepseek = experts("deepseek", 8, 3),
            bailing = experts("bailingmoe2", 8, 2), gpt_oss = experts("gpt-oss", 4, 2),
            qwen3vlmoe = experts("qwen3vlmoe", 8, 4);
  qwen3vlmoe.qk_norm = true;
  qwen3vlmoe.arrays = {{"rope.dimension_sections", {11, 11, 11, 0}}};
  mixtral.n_ff_expert = mixtral.n_ff;
  qwen2moe.qkv_bias = qwen2moe.shared_gate = true;
  qwen2moe.n_ff_shared = 160;
  qwen3moe.qk_norm = true;
  olmoe.qk_norm_of_rows = true;
  olmoe.n_kv_heads = olmoe.n_heads;
  olmoe.n_ff_expert = olmoe.n_ff;
  glm4moe.n_layers = 3;
  glm4moe.n_dense = 1;
  glm4moe.ffn_norm_name = "post_attention_norm";
  glm4moe.n_ff_shared = 48;
  glm4moe.qkv_bias = glm4moe.choice_bias = true;
  glm4moe.n_rot = 32;
  glm4moe.booleans = {{"expert_weights_norm", true}};
  glm4moe.numbers = {{"expert_weights_scale", 2.5F}};
  granitemoe.n_ff_expert = granitemoe.n_ff;
  granitemoe.numbers = {{"logit_scale", 0.5F}, {"residual_scale", 0.4F}};
  TinyModel minicpm = granitemoe;
  minicpm.architecture = "minicpm";
  minicpm.numbers["embedding_scale"] = 3.0F;
  ernie.n_dense = 1;
  ernie.n_ff_shared = 96;
  ernie.choice_bias = true;
  ernie.integers["interleave_moe_layer_step"] = 1;
  hunyuan.n_ff_expert = hunyuan.n_ff;
  hunyuan.n_ff_shared = 96;
  hunyuan.qk_norm = true;
  dots1.n_dense = 1;
  dots1.n_kv_heads = dots1.n_heads;
  dots1.n_ff_shared = 96;
  dots1.qk_norm = dots1.choice_bias = true;
  dots1.booleans = {{"expert_weights_norm", true}};
  dots1.integers["expert_gating_func"] = 2;
  deepseek.n_dense = 1;
  deepseek.n_ff_shared = 96;
  bailing.n_dense = 1;
  bailing.n_ff_shared = 48;
  bailing.fused_qkv = bailing.qk_norm = bailing.choice_bias = true;
  bailing.booleans = {{"expert_weights_norm", true}};
  bailing.integers["expert_gating_func"] = 2;
  bailing.integers["expert_group_count"] = 4;
  bailing.integers["expert_group_used_count"] = 2;
  TinyModel gemma4_experts = gemma4();
  gemma4_experts.n_experts = 8;
  gemma4_experts.dense_and_experts = true;
  gemma4_experts.integers["expert_used_count"] = 2;
  gpt_oss.n_layers = 3;
  gpt_oss.ffn_norm_name = "post_attention_norm";
  gpt_oss.sinks = gpt_oss.qkv_bias = gpt_oss.out_bias = gpt_oss.ffn_bias = gpt_oss.router_bias = true;
  gpt_oss.integers["attention.sliding_window"] = 100;
  return {{"mixtral", mixtral},
          {"qwen2moe", qwen2moe},
          {"qwen3moe", qwen3moe},
          {"olmoe", olmoe},
          {"glm4moe", glm4moe},
          {"granitemoe", granitemoe},
          {"minicpm_experts", minicpm},
          {"ernie4_5_moe", ernie},
          {"hunyuan_moe", hunyuan},
          {"dots1", dots1},
          {"deepseek", deepseek},
          {"bailingmoe2", bailing},
          {"gpt_oss", gpt_oss},
          {"qwen3vlmoe", qwen3vlmoe},
          {"gemma4_experts", gemma4_experts}};
}

// Returns models that combine gated delta nets and attention. Like real models, qwen35 has heads of 256
// channels. RoPE rotates 64 of the channels, in sections.
inline std::vector<Variant> hybrid_variants() {
  TinyModel qwen35 = tiny_hybrid(), every_second = tiny_hybrid();
  qwen35.n_layers = 5;
  qwen35.full_attention_interval = 4;
  qwen35.n_embd = every_second.n_embd = 256;
  qwen35.head_dim = 256;
  qwen35.n_rot = 64;
  qwen35.arrays = {{"rope.dimension_sections", {11, 11, 10, 0}}};
  every_second.n_heads = 6;
  every_second.n_kv_heads = 3;
  every_second.tied = true;
  every_second.n_delta_key_heads = 4;
  every_second.n_delta_value_heads = 4;
  every_second.delta_head_dim = 64;
  every_second.delta_kernel = 3;
  TinyModel qwen35moe = every_second;
  qwen35moe.architecture = "qwen35moe";
  qwen35moe.n_experts = 8;
  qwen35moe.n_ff_shared = 48;
  qwen35moe.shared_gate = true;
  qwen35moe.integers = {{"expert_used_count", 4}};
  TinyModel qwen3next = qwen35moe;
  qwen3next.architecture = "qwen3next";
  qwen3next.n_delta_key_heads = 2;
  qwen3next.delta_grouped = true;
  qwen3next.arrays = {};
  return {{"qwen35", qwen35},
          {"qwen35_every_second", every_second},
          {"qwen35moe", qwen35moe},
          {"qwen3next", qwen3next}};
}

}  // namespace kvant
