#include "model/architecture.h"

#include "model/weights.h"

namespace kvant {
namespace {

using W = LayerWeights;

constexpr Norm kAttentionNorm{RowSet::x, RowSet::h, {"attn_norm", &W::attn_norm, &W::attn_norm_bias}};
constexpr Norm kAttentionPostNorm{RowSet::y, RowSet::y, {"post_attention_norm", &W::attn_post_norm}};
constexpr VectorName kNetworkWeights{"ffn_norm", &W::ffn_norm, &W::ffn_norm_bias};
constexpr Norm kNetworkNorm{RowSet::x, RowSet::h, kNetworkWeights};
constexpr Norm kNetworkPostNorm{RowSet::y, RowSet::y, {"post_ffw_norm", &W::ffn_post_norm}};
// In some files, the norm before the network has the name that other files use for the norm after attention.
constexpr Norm kRenamedNetworkNorm{
    RowSet::x, RowSet::h, {"post_attention_norm", &W::ffn_norm, &W::ffn_norm_bias}};
// If the file lacks the weights, the network reads the same rows as attention, and the two blocks are
// parallel.
constexpr Norm kParallelNetworkNorm{RowSet::x, RowSet::h, kNetworkWeights, /*optional=*/true};

// The steps from kAttention to kGroupedDeltaNet lead from the residual stream to the outputs of attention or
// of a delta net.

constexpr LayerStep kAttention[] = {kAttentionNorm, ProjectHeads{}, TurnHeads{}, Attend{}};
constexpr LayerStep kSinks[] = {kAttentionNorm, ProjectHeads{}, TurnHeads{}, Attend{.sinks = true}};
constexpr LayerStep kTempered[] = {kAttentionNorm, ProjectHeads{}, TurnHeads{}, TemperQueries{}, Attend{}};
constexpr LayerStep kTurnedInWindows[] = {kAttentionNorm, ProjectHeads{}, TurnHeads{RotatedLayers::sliding},
                                          Attend{}};
constexpr LayerStep kThreeOfFourTurned[] = {kAttentionNorm, ProjectHeads{},
                                            TurnHeads{RotatedLayers::all_but_every_fourth}, Attend{}};
constexpr LayerStep kNormedHeads[] = {kAttentionNorm, ProjectHeads{}, NormHeads{}, TurnHeads{}, Attend{}};
constexpr LayerStep kMaybeNormedHeads[] = {kAttentionNorm, ProjectHeads{}, NormHeads{.optional = true},
                                           TurnHeads{}, Attend{}};
constexpr LayerStep kNormedTurnedHeads[] = {kAttentionNorm, ProjectHeads{}, TurnHeads{}, NormHeads{},
                                            Attend{}};
constexpr LayerStep kNormedRows[] = {kAttentionNorm, ProjectHeads{}, NormHeads{.of_rows = true}, TurnHeads{},
                                     Attend{}};
constexpr LayerStep kNormedRowsOfX[] = {ProjectHeads{RowSet::x}, NormHeads{.of_rows = true}, TurnHeads{},
                                        Attend{}};
constexpr LayerStep kNormedHeadsOfX[] = {ProjectHeads{RowSet::x}, NormHeads{},
                                         TurnHeads{RotatedLayers::sliding}, Attend{}};
constexpr LayerStep kNormedValues[] = {kAttentionNorm, ProjectHeads{}, NormHeads{},
                                       TurnHeads{},    NormValues{},   Attend{}};
constexpr LayerStep kGatedHeads[] = {kAttentionNorm, ProjectHeads{.gates = true}, NormHeads{}, TurnHeads{},
                                     Attend{}};
constexpr LayerStep kDeltaNet[] = {kAttentionNorm, RunDeltaNet{}};
constexpr LayerStep kGroupedDeltaNet[] = {kAttentionNorm, RunDeltaNet{.grouped = true}};

// The steps from kBack to kGatedBack lead from the outputs of attention back to the residual stream.

constexpr LayerStep kBack[] = {ProjectBack{}, Add{}};
constexpr LayerStep kNormedBack[] = {ProjectBack{}, kAttentionPostNorm, Add{}};
constexpr LayerStep kGatedBack[] = {GateHeads{}, ProjectBack{}, Add{}};

// The steps from kNetwork to kExpertsBesideNetwork run a feed-forward network, or experts in its place.

constexpr LayerStep kNetwork[] = {kNetworkNorm, RunNetwork{}, Add{}};
constexpr LayerStep kExperts[] = {kNetworkNorm, RouteRows{}, RunExperts{}, Add{}};
constexpr LayerStep kRenamedNetwork[] = {kRenamedNetworkNorm, RunNetwork{}, Add{}};
constexpr LayerStep kRenamedExperts[] = {kRenamedNetworkNorm, RouteRows{}, RunExperts{}, Add{}};
constexpr LayerStep kParallelNetwork[] = {kParallelNetworkNorm, RunNetwork{}, Add{}};
constexpr LayerStep kNetworkInNorms[] = {kNetworkNorm, RunNetwork{}, kNetworkPostNorm, Add{}};
constexpr LayerStep kNormedNetwork[] = {RunNetwork{RowSet::x}, kNetworkPostNorm, Add{}};
// In this layer, experts and another network run side by side, each with norms of its own.
constexpr LayerStep kExpertsBesideNetwork[] = {
    kNetworkNorm,
    RunNetwork{RowSet::h, RowSet::dense},
    Norm{RowSet::dense, RowSet::dense, {"post_ffw_norm_1", &W::dense_post_norm}},
    Norm{RowSet::x, RowSet::h, {"ffn_gate_inp", &W::router_norm, nullptr, ".scale"}},
    ScaleByWidth{RowSet::h},
    RouteRows{},
    Norm{RowSet::x, RowSet::h, {"pre_ffw_norm_2", &W::experts_norm}},
    RunExperts{.scaled = true},
    Norm{RowSet::y, RowSet::y, {"post_ffw_norm_2", &W::experts_post_norm}},
    Add{RowSet::dense, RowSet::y},
    kNetworkPostNorm,
    Add{}};

// kLayerInputs and kScaledLayer end a layer.

constexpr LayerStep kLayerInputs[] = {ReadLayerInput{},
                                      Norm{RowSet::y, RowSet::y, {"post_norm", &W::embd_post_norm}}, Add{}};
constexpr LayerStep kScaledLayer[] = {ScaleLayer{}};

// kPlainLayer is the layer of several architectures. The functions from with_attention() to hybrid() make the
// layers of other architectures.

constexpr LayerProgram kPlainLayer{
    .attention = kAttention, .back = kBack, .network = kNetwork, .experts = kExperts};
constexpr LayerProgram with_attention(LayerSteps attention, LayerProgram layer = kPlainLayer) {
  layer.attention = attention;
  return layer;
}
constexpr LayerProgram with_renamed_norm(LayerProgram layer) {
  layer.network = kRenamedNetwork;
  layer.experts = kRenamedExperts;
  return layer;
}
constexpr LayerProgram parallel(LayerSteps attention) {
  return {.attention = attention, .back = kBack, .network = kParallelNetwork, .experts = kExperts};
}
constexpr LayerProgram in_norms(LayerSteps attention) {
  return {.attention = attention, .back = kNormedBack, .network = kNetworkInNorms, .experts = kExperts};
}
constexpr LayerProgram normed_after(LayerSteps attention) {
  return {.attention = attention, .back = kNormedBack, .network = kNormedNetwork, .experts = kExperts};
}
constexpr LayerProgram hybrid(LayerSteps delta_net) {
  return {.attention = kGatedHeads,
          .delta_net = delta_net,
          .back = kGatedBack,
          .network = kRenamedNetwork,
          .experts = kRenamedExperts};
}

// The facts agree with llama.cpp, against which the tests compare kvant. Like llama.cpp, kvant ignores the
// sliding window in files of llama (Mistral 7B v0.1), qwen2 and phi3. kvant reads only the text of vision
// models (qwen2vl, qwen3vl, qwen35, some glm4). Positions in time, height and width are equal in text, so
// plain RoPE applies.
constexpr Architecture kArchitectures[] = {
    {.name = "arcee",
     .layer = kPlainLayer,
     .unit = {.activation = Activation::relu_squared, .ungated = true}},
    {.name = "bailingmoe2",
     .layer = with_attention(kNormedHeads),
     .experts = {.gating = Gating::sigmoid},
     .rope = RopePairs::neox},
    {.name = "chatglm", .layer = kPlainLayer, .unit = {.fused = true}},
    {.name = "cohere2",
     .layer = parallel(kTurnedInWindows),
     .windows = {.period = 4},
     .logit_scale = LogitScale::multiplies,
     .layer_norm = true},
    {.name = "command-r",
     .layer = parallel(kMaybeNormedHeads),
     .logit_scale = LogitScale::multiplies,
     .layer_norm = true},
    {.name = "deepseek", .layer = kPlainLayer},
    {.name = "dots1",
     .layer = with_attention(kNormedHeads),
     .experts = {.gating = Gating::sigmoid},
     .rope = RopePairs::neox},
    {.name = "ernie4_5", .layer = kPlainLayer},
    {.name = "ernie4_5-moe", .layer = kPlainLayer, .experts = {.normalizes = true}},
    {.name = "exaone", .layer = kPlainLayer, .rope = RopePairs::neox},
    {.name = "exaone4",
     .layer = normed_after(kNormedHeadsOfX),
     .rope = RopePairs::neox,
     .windows = {.period = 4, .tokens = 4096, .only_member = 64}},
    {.name = "gemma",
     .layer = kPlainLayer,
     .unit = {.activation = Activation::gelu},
     .rope = RopePairs::neox,
     .scales_embedding = true},
    {.name = "gemma2",
     .layer = in_norms(kAttention),
     .unit = {.activation = Activation::gelu},
     .rope = RopePairs::neox,
     .windows = {.period = 2, .tokens = 4096},
     .scores = {.wide_layers = 46, .softcap = 50},
     .logit_softcap = 30,
     .scales_embedding = true},
    {.name = "gemma3",
     .layer = in_norms(kNormedHeads),
     .unit = {.activation = Activation::gelu},
     .rope = RopePairs::neox,
     .windows = {.period = 6, .rope_base = 10000},
     .scores = {.wide_layers = 62},
     .scales_embedding = true},
    {.name = "gemma4",
     .layer = {.attention = kNormedValues,
               .back = kNormedBack,
               .network = kNetworkInNorms,
               .experts = kExpertsBesideNetwork,
               .inputs = kLayerInputs,
               .end = kScaledLayer},
     .unit = {.activation = Activation::gelu},
     .experts = {.normalizes = true},
     .rope = RopePairs::neox,
     .windows = {.period = 6, .rope_base = 10000, .rope_without_factors = true},
     .scores = {.unscaled = true},
     .scales_embedding = true,
     .unlike_layers = true},
    {.name = "glm4",
     .layer = in_norms(kAttention),
     .unit = {.fused = true},
     .rope = RopePairs::neox_with_sections},
    {.name = "glm4moe",
     .layer = with_renamed_norm(with_attention(kMaybeNormedHeads)),
     .experts = {.gating = Gating::sigmoid},
     .rope = RopePairs::neox},
    {.name = "gpt-oss",
     .layer = with_renamed_norm(with_attention(kSinks)),
     .unit = {.activation = Activation::clipped_silu},
     .experts = {.gating = Gating::softmax_of_chosen},
     .rope = RopePairs::neox,
     .windows = {.period = 2}},
    {.name = "granite",
     .layer = kPlainLayer,
     .experts = {.normalizes = true},
     .logit_scale = LogitScale::divides,
     .scales = FileScales::optional,
     .switches_rope = true},
    {.name = "granitemoe",
     .layer = kPlainLayer,
     .experts = {.normalizes = true},
     .logit_scale = LogitScale::divides,
     .scales = FileScales::optional,
     .switches_rope = true},
    {.name = "hunyuan-dense", .layer = with_attention(kNormedTurnedHeads), .rope = RopePairs::neox},
    {.name = "hunyuan-moe",
     .layer = with_attention(kNormedTurnedHeads),
     .experts = {.normalizes = true},
     .rope = RopePairs::neox},
    {.name = "internlm2", .layer = kPlainLayer},
    {.name = "llama", .layer = kPlainLayer, .experts = {.normalizes = true}},
    {.name = "minicpm",
     .layer = kPlainLayer,
     .experts = {.normalizes = true},
     .logit_scale = LogitScale::divides,
     .scales = FileScales::required},
    {.name = "mistral3", .layer = with_attention(kTempered), .experts = {.normalizes = true}},
    {.name = "nemotron",
     .layer = kPlainLayer,
     .unit = {.activation = Activation::relu_squared, .ungated = true},
     .rope = RopePairs::neox,
     .layer_norm = true},
    {.name = "olmo2",
     .layer = normed_after(kNormedRowsOfX),
     .rope = RopePairs::neox,
     .windows = {.period = 4, .rope_plain = true}},
    {.name = "olmoe", .layer = with_attention(kNormedRows), .rope = RopePairs::neox},
    {.name = "phi2",
     .layer = parallel(kAttention),
     .unit = {.activation = Activation::gelu, .ungated = true},
     .rope = RopePairs::neox,
     .layer_norm = true},
    {.name = "phi3", .layer = kPlainLayer, .unit = {.fused = true}, .rope = RopePairs::neox},
    {.name = "qwen2", .layer = kPlainLayer, .rope = RopePairs::neox},
    {.name = "qwen2moe", .layer = kPlainLayer, .rope = RopePairs::neox},
    {.name = "qwen2vl", .layer = kPlainLayer, .rope = RopePairs::neox},
    {.name = "qwen3", .layer = with_attention(kNormedHeads), .rope = RopePairs::neox},
    {.name = "qwen35", .layer = hybrid(kDeltaNet), .rope = RopePairs::neox},
    {.name = "qwen35moe",
     .layer = hybrid(kDeltaNet),
     .experts = {.normalizes = true},
     .rope = RopePairs::neox},
    {.name = "qwen3moe",
     .layer = with_attention(kNormedHeads),
     .experts = {.normalizes = true},
     .rope = RopePairs::neox},
    {.name = "qwen3next",
     .layer = hybrid(kGroupedDeltaNet),
     .experts = {.normalizes = true},
     .rope = RopePairs::neox},
    {.name = "qwen3vl", .layer = with_attention(kNormedHeads), .rope = RopePairs::neox},
    {.name = "qwen3vlmoe",
     .layer = with_attention(kNormedHeads),
     .experts = {.normalizes = true},
     .rope = RopePairs::neox},
    {.name = "seed_oss", .layer = with_renamed_norm(kPlainLayer), .rope = RopePairs::neox},
    {.name = "smollm3", .layer = with_attention(kThreeOfFourTurned)},
    {.name = "stablelm", .layer = parallel(kMaybeNormedHeads), .rope = RopePairs::neox, .layer_norm = true},
    {.name = "starcoder2",
     .layer = kPlainLayer,
     .unit = {.activation = Activation::gelu, .ungated = true},
     .rope = RopePairs::neox,
     .layer_norm = true},
};

struct Unsupported {
  const char* name;
  const char* layers;
};

constexpr const char* kKimiDelta = "layers of Kimi's delta attention, whose state is no KV cache";
constexpr const char* kMamba = "Mamba layers, whose state is no KV cache";
constexpr const char* kLatent = "multi-head latent attention (MLA)";
constexpr const char* kConvolutions = "layers of short convolutions, whose state is no KV cache";
constexpr const char* kSharedCache = "layers that attend to another layer's cache";

constexpr Unsupported kUnsupported[] = {
    {"kimi-linear", kKimiDelta}, {"mamba", kMamba},          {"mamba2", kMamba},
    {"jamba", kMamba},           {"falcon-h1", kMamba},      {"granitehybrid", kMamba},
    {"nemotron_h", kMamba},      {"nemotron_h_moe", kMamba}, {"deepseek2", kLatent},
    {"deepseek32", kLatent},     {"minicpm3", kLatent},      {"plm", kLatent},
    {"glm-dsa", kLatent},        {"mistral4", kLatent},      {"lfm2", kConvolutions},
    {"lfm2moe", kConvolutions},  {"gemma3n", kSharedCache},  {"llama4", "layers that attend within chunks"},
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
