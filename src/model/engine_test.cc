#include "model/engine.h"

#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "model/library_log.h"
#include "model/random_tokens.h"
#include "model/tiny_variants.h"
#include "recipe/plan.h"
#include "recipe/recipe.h"

namespace kvant {
namespace {

using testing::random_tokens;

// LlamaModel runs the tiny model in llama.cpp, with an F32 cache and all tokens in one batch.
struct LlamaModel {
  std::unique_ptr<llama_model, decltype(&llama_model_free)> model;
  std::unique_ptr<llama_context, decltype(&llama_free)> context;
};
LlamaModel open_llama(const std::string& path, std::size_t n_tokens, int context, bool embeds) {
  quiet_library_log();
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  model_params.use_extra_bufts = false;  // ggml's AMX code crashes on some machines (repacking.cc)
  llama_model* const model = llama_model_load_from_file(path.c_str(), model_params);
  KVANT_CHECK(model != nullptr, "llama.cpp refuses the tiny model");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = context;
  params.n_batch = params.n_ubatch = n_tokens;
  params.n_threads = params.n_threads_batch = 1;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  if (embeds) {
    params.embeddings = true;
    params.pooling_type = LLAMA_POOLING_TYPE_MEAN;
  }
  LlamaModel opened{{model, llama_model_free}, {llama_init_from_model(model, params), llama_free}};
  KVANT_CHECK(opened.context != nullptr, "no llama.cpp context");
  return opened;
}

// Returns llama.cpp's logits at every position, [n_tokens, n_vocab].
std::vector<float> llama_logits(const std::string& path, const std::vector<std::int32_t>& tokens,
                                int context) {
  const LlamaModel llama = open_llama(path, tokens.size(), context, /*embeds=*/false);
  llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = static_cast<llama_pos>(i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  batch.n_tokens = static_cast<int>(tokens.size());
  KVANT_CHECK(llama_decode(llama.context.get(), batch) == 0, "llama.cpp fails on the tokens");
  llama_batch_free(batch);
  const float* logits = llama_get_logits(llama.context.get());
  return {logits, logits + tokens.size() * TinyModelWriter::kVocabulary};
}

// Returns llama.cpp's mean of the hidden states, [n_embd].
std::vector<float> llama_embedding(const std::string& path, std::vector<std::int32_t> tokens, int context) {
  const LlamaModel llama = open_llama(path, tokens.size(), context, /*embeds=*/true);
  const auto n_tokens = static_cast<std::int32_t>(tokens.size());
  KVANT_CHECK(llama_decode(llama.context.get(), llama_batch_get_one(tokens.data(), n_tokens)) == 0,
              "llama.cpp fails on the tokens");
  const float* mean = llama_get_embeddings_seq(llama.context.get(), 0);
  return {mean, mean + llama_model_n_embd(llama.model.get())};
}

// Bench runs an engine on a tiny model, with a cache of one recipe.
class Bench {
 public:
  explicit Bench(const std::string& path, const std::string& recipe = "k=f16,v=f16",
                 const EngineOptions& options = {.n_threads = 1}) {
    auto engine = Engine::load(path, options);
    if (!engine.ok()) {
      ADD_FAILURE() << engine.error().message;
      return;
    }
    engine_ = std::move(*engine);
    const auto plan = resolve(parse_recipe(recipe).value(), engine_->geometry(), nullptr);
    if (!plan.ok()) {
      ADD_FAILURE() << plan.error().message;
      return;
    }
    cache_ = std::make_unique<Cache>(*plan, 0);
    backend_ = make_reference_backend();
  }

  Engine& engine() { return *engine_; }
  Cache& cache() { return *cache_; }

  // Returns the logits of all `tokens`. A new sequence reads `tokens` in steps of `chunk`.
  std::vector<float> logits(const std::vector<std::int32_t>& tokens, int chunk) {
    const SequenceId sequence = cache_->add();
    std::vector<float> all(tokens.size() * TinyModelWriter::kVocabulary);
    const int n = static_cast<int>(tokens.size());
    MatrixView<float> view(all.data(), n, TinyModelWriter::kVocabulary);
    for (int first = 0; first < n; first += chunk) {
      const int count = std::min(chunk, n - first);
      const EngineInput input{sequence, std::span(tokens).subspan(first, count), /*is_prompt=*/true, 0};
      const Status done = engine_->step(*cache_, *backend_, {&input, 1}, view.slice(first, count));
      if (!done.ok()) ADD_FAILURE() << done.error().message;
    }
    return all;
  }

  // Returns the mean of the hidden states of all `tokens`. A new sequence reads `tokens` in steps of `chunk`.
  std::vector<float> embedding(const std::vector<std::int32_t>& tokens, int chunk) {
    const SequenceId sequence = cache_->add();
    const int n = static_cast<int>(tokens.size()), n_embd = engine_->n_embd();
    std::vector<float> mean(n_embd), states(static_cast<std::size_t>(n) * n_embd);
    const MatrixView<float> view(states.data(), n, n_embd);
    for (int first = 0; first < n; first += chunk) {
      const int count = std::min(chunk, n - first);
      const EngineInput input{sequence, std::span(tokens).subspan(first, count), /*is_prompt=*/true};
      const Status done = engine_->embed(*cache_, *backend_, input, view.slice(first, count));
      if (!done.ok()) ADD_FAILURE() << done.error().message;
    }
    for (std::size_t i = 0; i < states.size(); ++i) mean[i % n_embd] += states[i] / static_cast<float>(n);
    return mean;
  }

  Status step(std::span<const EngineInput> inputs, MatrixView<float> logits) {
    return engine_->step(*cache_, *backend_, inputs, logits);
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<AttentionBackend> backend_;
};

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double maximum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= maximum)) maximum = std::abs(a[i] - b[i]);
  }
  return maximum;
}

// Returns the root mean square of the difference, relative to the root mean square of `exact`.
double relative_error(const std::vector<float>& exact, const std::vector<float>& other) {
  EXPECT_EQ(exact.size(), other.size());
  double difference = 0, energy = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    difference += std::pow(static_cast<double>(other[i]) - exact[i], 2);
    energy += std::pow(static_cast<double>(exact[i]), 2);
  }
  return std::sqrt(difference / energy);
}

class EachVariant : public ::testing::TestWithParam<Variant> {};
const auto name_of = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Engine, EachVariant, ::testing::ValuesIn(variants()), name_of);
INSTANTIATE_TEST_SUITE_P(Dense, EachVariant, ::testing::ValuesIn(dense_variants()), name_of);
INSTANTIATE_TEST_SUITE_P(Hybrids, EachVariant, ::testing::ValuesIn(hybrid_variants()), name_of);
INSTANTIATE_TEST_SUITE_P(UnlikeLayers, EachVariant, ::testing::ValuesIn(variants_of_unlike_layers()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Experts, EachVariant, ::testing::ValuesIn(expert_variants()), name_of);

// Returns the share of positions at which any logit differs by more than `limit`.
double share_beyond(const std::vector<float>& a, const std::vector<float>& b, double limit) {
  EXPECT_EQ(a.size(), b.size());
  constexpr std::size_t kVocabulary = TinyModelWriter::kVocabulary;
  int beyond = 0;
  for (std::size_t first = 0; first < a.size(); first += kVocabulary) {
    const auto differs = [&](std::size_t i) { return !(std::abs(a[first + i] - b[first + i]) <= limit); };
    std::size_t i = 0;
    while (i < kVocabulary && !differs(i)) ++i;
    beyond += i < kVocabulary;
  }
  return static_cast<double>(beyond * kVocabulary) / static_cast<double>(a.size());
}

// llama.cpp's embedding is the mean of these states. One run reads the tokens as a batch. The other run reads
// so few tokens per step that every thread computes all rows.
TEST_P(EachVariant, ShowsTheHiddenStatesOfLlamaCpp) {
  const TinyModel& model = GetParam().model;
  const auto file = write_tiny_model(model);
  const auto tokens = random_tokens(150, 7);
  const std::vector<float> expected = llama_embedding(file->path(), tokens, model.trained_context);
  Bench bench(file->path(), "k=f16,v=f16", {.n_threads = 2});
  EXPECT_LE(relative_error(expected, bench.embedding(tokens, 150)), model.n_experts > 0 ? 0.1 : 1e-2);
  EXPECT_LE(relative_error(expected, bench.embedding(tokens, 3)), model.n_experts > 0 ? 0.1 : 1e-2);
}

TEST_P(EachVariant, GivesTheLogitsOfLlamaCpp) {
  const TinyModel& model = GetParam().model;
  const auto file = write_tiny_model(model);
  const auto tokens = random_tokens(300, 7);
  Bench bench(file->path());
  const std::vector<float> expected = llama_logits(file->path(), tokens, model.trained_context);
  const std::vector<float> at_once = bench.logits(tokens, 300);
  RecordProperty("max_difference", std::to_string(max_difference(at_once, expected)));
  // If two experts are equally good, the rounding of K and V to F16 decides between them.
  const double turned_over = model.n_experts > 0 ? 0.03 : 0;
  EXPECT_LE(share_beyond(at_once, expected, model.n_layers < 32 ? 1e-2 : 2e-2), turned_over);
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  EXPECT_GT(*high - *low, 2) << "the model says nothing";
  EXPECT_LE(share_beyond(bench.logits(tokens, 128), at_once, 1e-3), turned_over);
  // Small batches use ggml's products, after which some keys and values round differently to F16.
  EXPECT_LE(share_beyond(bench.logits(tokens, 37), at_once, 5e-3), turned_over);
}

// Returns a model for each kind of layer. Among them are experts, sink logits with windows, norms of whole
// rows, parallel blocks, layers without RoPE, and delta nets.
std::vector<Variant> kinds_of_layers() {
  std::vector<Variant> some;
  const std::set<std::string> names{"qwen2moe", "bailingmoe2",    "gpt_oss",    "olmo3",
                                    "cohere2",  "mistral3",       "qwen35",     "qwen3next",
                                    "gemma4",   "gemma4_experts", "gemma4_e2b", "gemma4_shared_alike"};
  for (const auto& of :
       {dense_variants(), expert_variants(), hybrid_variants(), variants_of_unlike_layers()}) {
    for (const Variant& v : of) {
      if (names.contains(v.name)) some.push_back(v);
    }
  }
  return some;
}

class EachRecipe : public ::testing::TestWithParam<std::tuple<Variant, const char*>> {
 protected:
  EachRecipe()
      : file_(write_tiny_model(std::get<0>(GetParam()).model)),
        bench_(file_->path(), std::get<1>(GetParam())) {}

  // Decodes tokens one by one. Returns their logits.
  std::vector<float> decode(SequenceId sequence, std::span<const std::int32_t> tokens) {
    constexpr int kVocabulary = TinyModelWriter::kVocabulary;
    std::vector<float> all(tokens.size() * kVocabulary);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const EngineInput input{sequence, tokens.subspan(i, 1), /*is_prompt=*/false, 0};
      EXPECT_TRUE(bench_.step({&input, 1}, {all.data() + i * kVocabulary, 1, kVocabulary}).ok());
    }
    return all;
  }
  SequenceId read(std::span<const std::int32_t> tokens) {
    const SequenceId sequence = bench_.cache().add();
    const EngineInput input{sequence, tokens, /*is_prompt=*/true, static_cast<int>(tokens.size())};
    EXPECT_TRUE(bench_.step({&input, 1}, {}).ok());
    return sequence;
  }

  std::unique_ptr<TinyFile> file_;
  Bench bench_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, EachRecipe,
                         ::testing::Combine(::testing::ValuesIn(kinds_of_layers()),
                                            ::testing::Values("bf16", "kvant-4bit", "kvant-2bit", "kivi-2bit",
                                                              "q8_0")),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param).name + std::string("_") + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EachRecipe, GivesTheSameBitsForChunksOfWholePages) {
  const std::vector<std::int32_t> tokens = random_tokens(320, 5);
  const std::vector<float> at_once = bench_.logits(tokens, 320);
  EXPECT_EQ(bench_.logits(tokens, 128), at_once);
  for (const float x : at_once) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(EachRecipe, ForksAndCutsGoOnAsIfNothingHadBeen) {
  const std::vector<std::int32_t> tokens = random_tokens(330, 6), other = random_tokens(20, 7);
  const std::span all(tokens);
  const SequenceId whole = read(all.first(310));
  const std::vector<float> expected = decode(whole, all.subspan(310));
  const SequenceId trunk = read(all.first(310));
  const SequenceId branch = bench_.cache().fork(trunk).value();
  ASSERT_TRUE(bench_.cache().checkpoint(branch).ok());  // a delta net can return only to a checkpoint
  decode(branch, other);
  EXPECT_EQ(decode(trunk, all.subspan(310)), expected);
  ASSERT_TRUE(bench_.cache().truncate(branch, 310).ok());  // a cut within the tail is exact
  EXPECT_EQ(decode(branch, all.subspan(310)), expected);
}

TEST_P(EachRecipe, RunsABatchOfSequencesAsEachAlone) {
  constexpr int kVocabulary = TinyModelWriter::kVocabulary;
  const std::vector<std::int32_t> prompts[] = {random_tokens(150, 1), random_tokens(40, 2),
                                               random_tokens(260, 3)};
  const std::vector<std::int32_t> next = random_tokens(3, 4);
  std::vector<EngineInput> inputs;
  for (int s = 0; s < 3; ++s) inputs.push_back({read(prompts[s]), std::span(next).subspan(s, 1), false, 0});
  std::vector<float> together(3 * kVocabulary);
  ASSERT_TRUE(bench_.step(inputs, {together.data(), 3, kVocabulary}).ok());
  for (int s = 0; s < 3; ++s) {
    const std::vector<float> alone = decode(read(prompts[s]), std::span(next).subspan(s, 1));
    const std::vector<float> of_s(together.begin() + s * kVocabulary,
                                  together.begin() + (s + 1) * kVocabulary);
    EXPECT_LE(max_difference(of_s, alone), 5e-3) << s;
  }
}

TEST(Engine, GivesTheSameLogitsOfExpertsOnAnyNumberOfThreads) {
  for (const Variant& variant : kinds_of_layers()) {
    const auto file = write_tiny_model(variant.model);
    const std::vector<std::int32_t> tokens = random_tokens(40, 5);
    Bench one(file->path()), three(file->path(), "k=f16,v=f16", {.n_threads = 3});
    for (const int chunk : {40, 4})
      EXPECT_LE(max_difference(one.logits(tokens, chunk), three.logits(tokens, chunk)), 1e-3) << variant.name;
  }
}

// Models store experts in these types. gpt-oss uses MXFP4.
TEST(Engine, ReadsExpertsOfEveryType) {
  TinyModel model;
  for (const Variant& v : expert_variants()) {
    if (v.name == std::string("gpt_oss")) model = v.model;
  }
  model.n_ff_expert = 64;
  for (const ggml_type type : {GGML_TYPE_MXFP4, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_BF16}) {
    model.matrix_type = type;
    const auto file = write_tiny_model(model);
    const std::vector<std::int32_t> tokens = random_tokens(64, 6);
    Bench stored(file->path());
    const std::vector<float> at_once = stored.logits(tokens, 64);
    const std::vector<float> expected = llama_logits(file->path(), tokens, 256);
    EXPECT_LE(relative_error(expected, at_once), 0.06) << ggml_type_name(type);
    EXPECT_LE(relative_error(expected, stored.logits(tokens, 1)), 0.06) << ggml_type_name(type);
  }
}

// In this model, training has left the norms uneven. In some channels, keys are 32 times as large as in the
// even model, and queries are 32 times as small. All scores are the same as in the even model. After
// balancing, both models must give the same bits, so a rotated cache rounds both models alike.
TEST(Engine, GivesTheSameBitsHoweverNormsAreSharedOutBetweenQueriesAndKeys) {
  TinyModel even{.architecture = "qwen3", .head_dim = 128, .qk_norm = true}, skewed = even;
  skewed.key_octaves = 5;
  const auto even_file = write_tiny_model(even), skewed_file = write_tiny_model(skewed);
  const std::vector<std::int32_t> tokens = random_tokens(300, 5);
  for (const char* recipe : {"k=bf16,v=bf16", "k=hadamard:tcq2,v=bf16"})
    EXPECT_EQ(Bench(skewed_file->path(), recipe).logits(tokens, 300),
              Bench(even_file->path(), recipe).logits(tokens, 300))
        << recipe;
}

TEST(PositionOffset, MovesRopeAndNothingElse) {
  const auto file = write_tiny_model({});
  Bench bench(file->path());
  const std::vector<std::int32_t> tokens = random_tokens(40, 7);
  const auto logits = [&](int offset_of_first, int offset_of_rest) {
    constexpr int kFirst = 8;
    const SequenceId sequence = bench.cache().add();
    std::vector<float> last(TinyModelWriter::kVocabulary);
    const std::span all(tokens);
    const EngineInput first{sequence, all.first(kFirst), true, kFirst, offset_of_first};
    const EngineInput rest{sequence, all.subspan(kFirst), true, 31, offset_of_rest};
    EXPECT_TRUE(bench.step({&first, 1}, {}).ok());
    EXPECT_TRUE(bench.step({&rest, 1}, {last.data(), 1, TinyModelWriter::kVocabulary}).ok());
    return last;
  };
  const std::vector<float> unmoved = logits(0, 0);
  EXPECT_LT(max_difference(unmoved, logits(500, 500)), 0.02);
  EXPECT_GT(max_difference(unmoved, logits(0, 500)), 0.1);
}

TEST(Engine, RunsSequencesOfDifferentLengthsInOneStepAsEachAlone) {
  TinyModel model{.architecture = "gemma2", .n_layers = 2, .post_norms = true, .tied = true};
  model.integers = {{"attention.sliding_window", 100}};
  const auto file = write_tiny_model(model);
  const std::vector<std::int32_t> prompts[] = {random_tokens(150, 1), random_tokens(3, 2),
                                               random_tokens(260, 3)};
  const std::vector<std::int32_t> next_tokens = random_tokens(3, 4);
  Bench together(file->path());
  Bench alone(file->path());

  std::vector<EngineInput> inputs;
  for (const auto& p : prompts)
    inputs.push_back({together.cache().add(), p, true, static_cast<int>(p.size()) - 1});
  std::vector<float> last(3 * TinyModelWriter::kVocabulary);
  const MatrixView<float> view(last.data(), 3, TinyModelWriter::kVocabulary);
  ASSERT_TRUE(together.step(inputs, view).ok());
  for (int s = 0; s < 3; ++s)
    inputs[s] = {inputs[s].sequence, std::span(next_tokens).subspan(s, 1), false, 0};
  std::vector<float> next(last.size());
  ASSERT_TRUE(together.step(inputs, {next.data(), 3, TinyModelWriter::kVocabulary}).ok());

  for (int s = 0; s < 3; ++s) {
    std::vector<std::int32_t> tokens = prompts[s];
    tokens.push_back(next_tokens[s]);
    const std::vector<float> expected = alone.logits(tokens, 512);
    const auto row = [](const std::vector<float>& all, std::size_t r) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * TinyModelWriter::kVocabulary);
      return std::vector<float>(first, first + TinyModelWriter::kVocabulary);
    };
    EXPECT_LE(max_difference(row(last, s), row(expected, tokens.size() - 2)), 5e-3) << s;
    EXPECT_LE(max_difference(row(next, s), row(expected, tokens.size() - 1)), 5e-3) << s;
  }
}

TEST(Engine, GivesTheSameBitsForChunksOfWholePages) {
  const auto file = write_tiny_model({});
  Bench bench(file->path());
  const std::vector<std::int32_t> tokens = random_tokens(640, 5);
  const std::vector<float> at_once = bench.logits(tokens, 640);
  EXPECT_EQ(bench.logits(tokens, 128), at_once);
  EXPECT_EQ(bench.logits(tokens, 256), at_once);
}

TEST(Engine, RefusesStepsOnceItIsToStopAndLeavesTheCacheAsItWas) {
  const auto file = write_tiny_model({});
  std::atomic<bool> stop{false};
  Bench bench(file->path(), "k=f16,v=f16", {.n_threads = 1, .stop = &stop});
  const std::vector<std::int32_t> tokens = random_tokens(5, 1);
  const SequenceId sequence = bench.cache().add();
  const EngineInput input{sequence, tokens, /*is_prompt=*/true, /*first_logits=*/5};
  ASSERT_TRUE(bench.step({&input, 1}, {}).ok());
  stop = true;
  const Status refused = bench.step({&input, 1}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "interrupted");
  EXPECT_EQ(bench.cache().length(sequence), 5);
  stop = false;
  EXPECT_TRUE(bench.step({&input, 1}, {}).ok());
}

TEST(Engine, GivesTheSameLogitsOnAnyNumberOfThreads) {
  const auto file = write_tiny_model({});
  const std::vector<std::int32_t> tokens = random_tokens(40, 5);
  Bench one(file->path());
  Bench three(file->path(), "k=f16,v=f16", {.n_threads = 3});
  EXPECT_LE(max_difference(one.logits(tokens, 33), three.logits(tokens, 33)), 1e-3);
}

TEST(Engine, DequantizesWeightsExactly) {
  TinyModel model;
  model.n_embd = 128;
  model.n_ff = 256;
  for (const ggml_type type :
       {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_F16, GGML_TYPE_BF16}) {
    model.matrix_type = type;
    const auto file = write_tiny_model(model);
    const std::vector<std::int32_t> tokens = random_tokens(64, 6);
    Bench dequantized(file->path(), "k=f16,v=f16", {.n_threads = 1, .weights = WeightMode::f32});
    Bench stored(file->path(), "k=f16,v=f16", {.n_threads = 1, .weights = WeightMode::as_stored});
    EXPECT_GT(dequantized.engine().weight_bytes(), stored.engine().weight_bytes()) << ggml_type_name(type);
    const std::vector<float> exact = dequantized.logits(tokens, 64);
    TinyModel in_f32 = model;
    in_f32.matrix_type = GGML_TYPE_F32;
    in_f32.rounded_to = type;
    const auto f32_file = write_tiny_model(in_f32);
    EXPECT_LE(max_difference(exact, Bench(f32_file->path()).logits(tokens, 64)), 1e-5)
        << ggml_type_name(type);
    // ggml rounds activations to the weights' type, or to INT8 for quantized weights, in kvant and in
    // llama.cpp.
    const double maximum = type == GGML_TYPE_F16 ? 0.002 : type == GGML_TYPE_BF16 ? 0.015 : 0.03;
    EXPECT_LE(relative_error(exact, llama_logits(file->path(), tokens, 256)), maximum)
        << ggml_type_name(type);
    EXPECT_LE(relative_error(exact, stored.logits(tokens, 64)), maximum) << ggml_type_name(type);
    EXPECT_LE(relative_error(exact, stored.logits(tokens, 1)), maximum) << ggml_type_name(type);
  }
}

TEST(Engine, GivesIndependentSequencesTheBitsThatTheyGetAlone) {
  TinyModel model{.n_embd = 256, .n_ff = 256, .head_dim = 64};
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0,
                               GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}) {
    model.matrix_type = type;
    const auto file = write_tiny_model(model);
    Bench together(file->path()), alone(file->path());
    const int n = together.engine().independent_sequences();
    ASSERT_GE(n, 1);
    const std::vector<std::int32_t> prompt = random_tokens(40, 3), next = random_tokens(n, 4);
    std::vector<EngineInput> inputs;
    for (int i = 0; i < n; ++i) {
      const EngineInput read{together.cache().add(), prompt, true, 40};
      ASSERT_TRUE(together.step({&read, 1}, {}).ok());
      inputs.push_back({read.sequence, std::span(next).subspan(i, 1), false});
    }
    std::vector<float> all(static_cast<std::size_t>(n) * TinyModelWriter::kVocabulary);
    ASSERT_TRUE(together.step(inputs, {all.data(), n, TinyModelWriter::kVocabulary}).ok());
    for (int i = 0; i < n; ++i) {
      const EngineInput read{alone.cache().add(), prompt, true, 40};
      ASSERT_TRUE(alone.step({&read, 1}, {}).ok());
      std::vector<float> one(TinyModelWriter::kVocabulary);
      const EngineInput decoded{read.sequence, std::span(next).subspan(i, 1), false};
      ASSERT_TRUE(alone.step({&decoded, 1}, {one.data(), 1, TinyModelWriter::kVocabulary}).ok());
      ASSERT_TRUE(std::equal(one.begin(), one.end(), all.begin() + i * TinyModelWriter::kVocabulary))
          << ggml_type_name(type) << " " << i << " of " << n;
    }
  }
}

TEST(Engine, LeavesTheCacheAsItWasWhenAStepFails) {
  const auto file = write_tiny_model({});
  Bench bench(file->path());
  const std::vector<std::int32_t> good = random_tokens(10, 8);
  const SequenceId sequence = bench.cache().add();
  const EngineInput input{sequence, good, true, 10};
  ASSERT_TRUE(bench.step({&input, 1}, {}).ok());
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{5, -1}, {5, TinyModelWriter::kVocabulary}, {}}) {
    const EngineInput wrong{sequence, bad, true, static_cast<int>(bad.size())};
    const Status done = bench.step({&wrong, 1}, {});
    ASSERT_FALSE(done.ok());
    EXPECT_FALSE(done.error().message.empty());
    EXPECT_EQ(bench.cache().length(sequence), 10);
  }
}

TEST(Engine, DescribesItself) {
  TinyModel model{.n_embd = 128, .matrix_type = GGML_TYPE_Q8_0};
  const auto file = write_tiny_model(model);
  Bench bench(file->path());
  EXPECT_EQ(bench.engine().description(), "llama tiny Q8_0");
  EXPECT_EQ(bench.engine().n_vocab(), TinyModelWriter::kVocabulary);
  EXPECT_EQ(bench.engine().fingerprint().size(), 16U);
}

}  // namespace
}  // namespace kvant
