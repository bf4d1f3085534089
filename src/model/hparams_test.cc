#include "model/hparams.h"

#include <gtest/gtest.h>

#include "model/engine.h"
#include "model/tiny_model.h"
#include "model/tiny_variants.h"

namespace kvant {
namespace {

Result<Hparams> read(const TinyModel& model, int context = 0) {
  const auto written = write_tiny_model(model);
  return read_hparams(*GgufFile::open(written->path()).value(), context);
}

std::string refusal(const TinyModel& model) {
  const auto engine = Engine::load(write_tiny_model(model)->path(), {.n_threads = 1});
  return engine.ok() ? "" : engine.error().message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Hparams, ReadsSizes) {
  const Hparams h =
      read({.n_layers = 3, .n_embd = 96, .n_heads = 6, .n_kv_heads = 3, .head_dim = 80}).value();
  EXPECT_EQ(h.n_layers, 3);
  EXPECT_EQ(h.n_embd, 96);
  EXPECT_EQ(h.n_rot, 80);
  const Geometry g = h.geometry();
  EXPECT_EQ(g.n_heads, 6);
  EXPECT_EQ(g.n_kv_heads, 3);
  EXPECT_EQ(g.head_dim, 80);
  EXPECT_FLOAT_EQ(g.softmax_scale, 1 / std::sqrt(80.0F));
  EXPECT_EQ(g.score_softcap, 0);
  EXPECT_EQ(g.trained_context, 1024);
  EXPECT_EQ(g.sliding_window, (std::vector<int>{0, 0, 0}));
}

// Gemma 2 (27B) and Gemma 3 (27B) divide queries by sqrt(n_embd / n_heads) in place of sqrt(head_dim).
TEST(Hparams, ScalesTheQueriesOfGemma27BByItsWidth) {
  const TinyModel gemma2{
      .architecture = "gemma2", .n_layers = 46, .n_embd = 72, .n_heads = 4, .head_dim = 64};
  EXPECT_FLOAT_EQ(read(gemma2)->softmax_scale, 1 / std::sqrt(18.0F));
  const TinyModel gemma3{
      .architecture = "gemma3", .n_layers = 62, .n_embd = 72, .n_heads = 4, .head_dim = 64};
  EXPECT_FLOAT_EQ(read(gemma3)->softmax_scale, 1 / std::sqrt(18.0F));
}

TEST(Hparams, LaysSlidingWindowsByThePatternOfTheArchitecture) {
  TinyModel model{.architecture = "gemma3", .n_layers = 7};
  model.integers = {{"attention.sliding_window", 512}};
  EXPECT_EQ(read(model)->sliding_window, (std::vector<int>{512, 512, 512, 512, 512, 0, 512}));
  model.integers["attention.sliding_window_pattern"] = 3;
  EXPECT_EQ(read(model)->sliding_window, (std::vector<int>{512, 512, 0, 512, 512, 0, 512}));
  model.architecture = "gemma2";
  model.integers = {};
  EXPECT_EQ(read(model)->sliding_window, (std::vector<int>{4096, 0, 4096, 0, 4096, 0, 4096}));
}

TEST(Hparams, ChoosesLongRopeFactorsByTheContext) {
  TinyModel model{.architecture = "phi3"};
  model.integers = {{"rope.scaling.original_context_length", 256}};
  EXPECT_EQ(read(model)->long_rope, LongRope::long_factors);
  EXPECT_EQ(read(model, 257)->long_rope, LongRope::long_factors);
  EXPECT_EQ(read(model, 256)->long_rope, LongRope::short_factors);
}

// In Gemma 4, layers with a window have other heads.
TEST(Hparams, ReadsTheHeadsOfEachLayer) {
  TinyModel model{.architecture = "gemma4", .n_layers = 3, .n_heads = 8, .n_kv_heads = 1, .head_dim = 512};
  model.sliding_head_dim = 256;
  model.sliding_n_kv_heads = 4;
  model.integers = {{"attention.sliding_window", 100}};
  model.arrays = {{"attention.sliding_window_pattern", {1, 0, 1}}};
  const Geometry g = read(model)->geometry();
  ASSERT_TRUE(g.heads_differ());
  for (const int layer : {0, 2}) {
    EXPECT_EQ(g.dim(layer), 256);
    EXPECT_EQ(g.kv_heads(layer), 4);
    EXPECT_EQ(g.group(layer), 2);
  }
  EXPECT_EQ(g.dim(1), 512);
  EXPECT_EQ(g.kv_heads(1), 1);
  EXPECT_EQ(g.head_index(1, 0), 4);
  EXPECT_EQ(g.head_index(2, 3), 8);
  EXPECT_EQ(g.n_all_kv_heads(), 9);
  EXPECT_EQ(g.head_dim, 512);
  EXPECT_EQ(g.n_kv_heads, 4);
  EXPECT_EQ(g.softmax_scale, 1);
  model.sliding_head_dim = 512;
  model.sliding_n_kv_heads = 1;
  EXPECT_FALSE(read(model)->geometry().heads_differ());
  model.sliding_n_kv_heads = 3;
  EXPECT_TRUE(contains(refusal(model), "does not divide the number of heads")) << refusal(model);
}

TEST(Hparams, RefusesOtherArchitecturesAndListsItsOwn) {
  const std::string message = refusal({.architecture = "mamba"});
  EXPECT_TRUE(contains(message, "'mamba'")) << message;
  for (const Architecture& a : architectures()) EXPECT_TRUE(contains(message, a.name)) << message;
}

TEST(Hparams, RefusesOtherKindsOfAttentionAndLayers) {
  EXPECT_TRUE(contains(refusal({.architecture = "kimi-linear"}), "delta attention"));
  EXPECT_TRUE(contains(refusal({.architecture = "gemma3n"}), "attend to another layer's cache"));
  TinyModel sharing{.architecture = "gemma3"};
  sharing.integers = {{"attention.shared_kv_layers", 1}};
  EXPECT_TRUE(contains(refusal(sharing), "attend to another layer's cache")) << refusal(sharing);
  sharing.integers = {{"embedding_length_per_layer_input", 64}};
  EXPECT_TRUE(contains(refusal(sharing), "token embeddings of every layer")) << refusal(sharing);
  TinyModel experts;
  experts.integers = {{"expert_count", 8}, {"expert_used_count", 2}};
  EXPECT_TRUE(contains(refusal(experts), "no tensor 'blk.*.ffn_up_exps.weight'")) << refusal(experts);
  TinyModel latent;
  latent.integers = {{"attention.kv_lora_rank", 64}};
  EXPECT_TRUE(contains(refusal(latent), "MLA")) << refusal(latent);
  TinyModel unlike;
  unlike.integers = {{"attention.value_length", 32}};
  EXPECT_TRUE(contains(refusal(unlike), "value_length")) << refusal(unlike);
  EXPECT_TRUE(contains(refusal({.head_dim = 520}), "multiples of 8 up to 512"));
  EXPECT_TRUE(contains(refusal({.head_dim = 60}), "multiples of 8 up to 512"));
}

// Layers 3 to 6 attend to the caches of layers 1 and 2. Layer 1 is the last earlier one with a window, and
// layer 2 the last with full attention.
TEST(Hparams, ReadsWhichLayersShareACache) {
  TinyModel model = gemma4();
  model.n_layers = 7;
  model.arrays["attention.sliding_window_pattern"] = {1, 1, 0, 1, 0, 1, 0};
  model.n_sharing = 4;
  model.sliding_n_kv_heads = 0;
  const Hparams h = read(model).value();
  EXPECT_EQ(h.place, (std::vector<int>{0, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(h.ff(2) * 2, h.ff(3));
  const Geometry g = h.geometry();
  EXPECT_EQ(g.n_layers, 3);
  EXPECT_EQ(g.shared, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(g.sliding_window.size(), 3U);
  model.arrays["attention.sliding_window_pattern"] = {1, 1, 1, 1, 0, 1, 0};
  EXPECT_TRUE(contains(refusal(model), "leaves no cache for layer 4")) << refusal(model);
}

TEST(Hparams, ReadsHowExpertsAreChosen) {
  TinyModel model{
      .architecture = "bailingmoe2", .n_layers = 3, .n_experts = 8, .n_dense = 1, .n_ff_shared = 96};
  model.integers = {{"expert_used_count", 2}, {"expert_group_count", 4}, {"expert_group_used_count", 2}};
  model.booleans = {{"expert_weights_norm", true}};
  model.numbers = {{"expert_weights_scale", 2.5F}};
  const Experts e = read(model)->experts;
  EXPECT_EQ(e.n, 8);
  EXPECT_EQ(e.n_used, 2);
  EXPECT_EQ(e.n_ff, 48);
  EXPECT_EQ(e.n_ff_shared, 96);
  EXPECT_EQ(e.gating, Gating::sigmoid);
  EXPECT_TRUE(e.normalizes);
  EXPECT_EQ(e.scale, 2.5F);
  EXPECT_EQ(e.n_groups, 4);
  EXPECT_EQ(e.n_groups_used, 2);
  model.integers["expert_gating_func"] = 1;
  EXPECT_EQ(read(model)->experts.gating, Gating::softmax);
  model.integers["expert_group_count"] = 3;
  EXPECT_TRUE(contains(refusal(model), "expert_group_count")) << refusal(model);
  model.integers["expert_used_count"] = 9;
  EXPECT_TRUE(contains(refusal(model), "not in 1..8")) << refusal(model);
}

TEST(Hparams, TakesZeroForValuesThatAFileDoesNotGive) {
  TinyModel model{.architecture = "glm4moe", .n_experts = 8};
  model.integers = {{"expert_used_count", 2},
                    {"expert_group_count", 0},
                    {"expert_group_used_count", 0},
                    {"expert_gating_func", 0},
                    {"rope.scaling.original_context_length", 0}};
  const Hparams h = read(model).value();
  EXPECT_EQ(h.experts.n_groups, 1);
  EXPECT_EQ(h.experts.gating, Gating::sigmoid);
  EXPECT_EQ(h.rope.original_context, 1024);
}

// If one of these values were ignored, completions would be wrong.
TEST(Hparams, RefusesValuesThatTheArchitectureHasNoPlaceFor) {
  for (const char* name :
       {"attention.clamp_kqv", "attention.max_alibi_bias", "attention.key_length_swa",
        "attention.value_length_swa", "rope.dimension_count_swa", "embedding_scale", "residual_scale",
        "attention.scale", "attention.temperature_scale", "logit_scale"}) {
    TinyModel model;
    model.numbers = {{name, 24}};
    EXPECT_TRUE(contains(refusal(model), std::string("llama.") + name + "' is 24")) << refusal(model);
    model.numbers = {{name, 0}};
    EXPECT_EQ(refusal(model), "") << name;
  }
  TinyModel model;
  // The values in the file are the values that apply anyway.
  model.numbers = {{"attention.scale", 0.125F}, {"attention.key_length_swa", 64}};
  EXPECT_EQ(refusal(model), "");
}

// MiniCPM's first files had no scales. Without them, every completion would be wrong.
TEST(Hparams, RefusesMiniCpmWithoutItsScales) {
  TinyModel model{.architecture = "minicpm"};
  const std::map<std::string, float> scales = {
      {"embedding_scale", 12}, {"residual_scale", 0.25F}, {"logit_scale", 16}};
  model.numbers = scales;
  const Hparams h = read(model).value();
  EXPECT_EQ(h.embedding_scale, 12);
  EXPECT_EQ(h.residual_scale, 0.25F);
  EXPECT_EQ(h.logit_scale, 1.0F / 16);
  for (const auto& [name, value] : scales) {
    model.numbers.erase(name);
    EXPECT_TRUE(contains(refusal(model), "minicpm." + name + "' is missing")) << refusal(model);
    model.numbers[name] = 0;
    EXPECT_TRUE(contains(refusal(model), "minicpm." + name + "' is missing")) << refusal(model);
    model.numbers[name] = value;
  }
}

// Granite's files can switch RoPE off by this key, which other files only have as a note.
TEST(Hparams, SwitchesRopeOffForGraniteAlone) {
  TinyModel model{.architecture = "granite"};
  model.booleans = {{"rope.scaling.finetuned", false}};
  EXPECT_EQ(read(model)->rotated, (std::vector<bool>{false, false}));
  for (const char* other : {"llama", "minicpm"}) {
    model.architecture = other;
    if (model.architecture == "minicpm")
      model.numbers = {{"embedding_scale", 12}, {"residual_scale", 0.25F}, {"logit_scale", 16}};
    EXPECT_EQ(read(model)->rotated, (std::vector<bool>{true, true})) << other;
  }
}

TEST(Hparams, LeavesOutLayersThatGuessFurtherTokens) {
  TinyModel model{.architecture = "glm4moe", .n_layers = 3};
  model.integers = {{"nextn_predict_layers", 1}};
  EXPECT_EQ(read(model)->n_layers, 2);
  EXPECT_EQ(read(model)->geometry().n_layers, 2);
  model.integers = {{"nextn_predict_layers", 3}};
  EXPECT_TRUE(contains(refusal(model), "leaves no layer")) << refusal(model);
}

TEST(Hparams, CountsForTheCacheTheLayersWithAttentionAlone) {
  TinyModel model = tiny_hybrid();
  model.n_layers = 5;
  model.full_attention_interval = 3;
  const Hparams h = read(model).value();
  EXPECT_EQ(h.recurrent, (std::vector<bool>{true, true, false, true, true}));
  EXPECT_EQ(h.place, (std::vector<int>{0, 1, 0, 2, 3}));
  const Geometry g = h.geometry();
  EXPECT_EQ(g.n_layers, 1);
  EXPECT_EQ(g.sliding_window, (std::vector<int>{0}));
  EXPECT_EQ(g.n_recurrent_layers, 4);
  // Each delta net has 3 inputs for each of 2 x 2 + 6 heads with 32 channels, and a matrix for each of the 6
  // value heads.
  EXPECT_EQ(g.recurrent_values, 4 * (3 * 10 * 32 + 6 * 32 * 32));
  EXPECT_FALSE(read({}).value().geometry().is_recurrent());
  model.arrays["attention.recurrent_layers"] = {1, 0, 1, 1, 0};
  EXPECT_EQ(read(model)->place, (std::vector<int>{0, 0, 1, 2, 1}));
}

TEST(Hparams, RefusesDeltaNetsThatCanNotBe) {
  const auto refusal_with = [](const char* name, std::int32_t value) {
    TinyModel model = tiny_hybrid();
    model.integers = {{name, static_cast<std::uint32_t>(value)}};
    return refusal(model);
  };
  EXPECT_TRUE(contains(refusal_with("ssm.state_size", 48), "multiples of 32 up to 256"));
  EXPECT_TRUE(contains(refusal_with("ssm.group_count", 4), "does not divide"));
  EXPECT_TRUE(contains(refusal_with("ssm.inner_size", 64), "is not ssm.time_step_rank heads"));
  EXPECT_TRUE(contains(refusal_with("ssm.conv_kernel", 17), "not in 1..16"));
  TinyModel without_attention = tiny_hybrid();
  without_attention.arrays["attention.recurrent_layers"] = {1, 1, 1, 1};
  EXPECT_TRUE(contains(refusal(without_attention), "leaves no layer with attention"));
  without_attention.arrays["attention.recurrent_layers"] = {1, 1, 1};
  EXPECT_TRUE(contains(refusal(without_attention), "does not cover every layer"));
}

TEST(Hparams, SaysHowToJoinTheFilesOfASplitModel) {
  const TinyFile file("part.gguf");
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> header(gguf_init_empty(), gguf_free);
  gguf_set_val_u16(header.get(), "split.count", 3);
  ASSERT_TRUE(gguf_write_to_file(header.get(), file.path().c_str(), /*only_meta=*/true));
  const auto h = read_hparams(*GgufFile::open(file.path()).value(), 0);
  ASSERT_FALSE(h.ok());
  EXPECT_TRUE(contains(h.error().message, "one of 3 parts")) << h.error().message;
}

TEST(Hparams, RefusesImplausibleValues) {
  EXPECT_TRUE(contains(refusal({.n_heads = 3, .n_kv_heads = 2}), "does not divide"));
  TinyModel model;
  model.integers = {{"block_count", 0}};
  EXPECT_TRUE(contains(refusal(model), "llama.block_count"));
  model.integers = {};
  model.numbers = {{"rope.freq_base", -1.0F}};
  EXPECT_TRUE(contains(refusal(model), "is not positive"));
  model.numbers = {};
  model.texts = {{"rope.scaling.type", "spiral"}};
  EXPECT_TRUE(contains(refusal(model), "'spiral'"));
}

TEST(Weights, NamesTheTensorThatIsMissingMisshapenOrUnknown) {
  TinyModel model;
  model.integers = {{"block_count", 3}};  // the file has only two layers
  EXPECT_TRUE(contains(refusal(model), "no tensor 'blk.2.attn_norm.weight'")) << refusal(model);
  model.integers = {{"block_count", 1}};
  EXPECT_TRUE(contains(refusal(model), "does not support")) << refusal(model);
  model.integers = {{"feed_forward_length", 100}};
  EXPECT_TRUE(contains(refusal(model), "blk.0.ffn_gate.weight")) << refusal(model);
}

}  // namespace
}  // namespace kvant
