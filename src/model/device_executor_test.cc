// Compares the engine on a device with the CPU's engine on the reference backend. One device is host memory
// with ggml's CPU backend, which uses the graphs, tables, ledgers and calls of a GPU. A real GPU is tested if
// the machine has one.
#include <gtest/gtest.h>

#include <cmath>

#include "cache/rewindable_tokens.h"
#include "model/device_machine.h"
#include "model/tiny_variants.h"

namespace kvant {
namespace {

using testing::device_at;
using testing::HostAndDevice;
using testing::HostDevice;
using testing::kPlaces;
using testing::Machine;
using testing::Place;
using testing::relative_difference;
using testing::row_differences;
using testing::some_tokens;
using testing::with_recipe;

class DeviceEngine : public ::testing::TestWithParam<std::tuple<const char*, Place>>,
                     protected HostAndDevice {
 protected:
  DeviceEngine() : HostAndDevice("device.gguf") {
    const Place place = with_recipe(std::get<1>(GetParam()), std::get<0>(GetParam()));
    same_ = place.between_ways;
    close_ = place.from_cpu;
  }
  void SetUp() override {
    if (!load(std::get<1>(GetParam()), TinyModel{}, std::get<0>(GetParam())))
      GTEST_SKIP() << "no such device";
  }

  double same_, close_;  // Place explains the two values
};

TEST_P(DeviceEngine, GivesTheLogitsOfTheCpuWhateverTheCut) {
  expect_logits_of_the_cpu({400, 128, 77}, 30, close_, same_);
}

TEST_P(DeviceEngine, SequencesOfOneStepAreEachAsAlone) {
  const auto a = some_tokens(300, 2), b = some_tokens(150, 3);
  Cache& cache = device_->cache();
  const SequenceId alone_a = cache.add(), alone_b = cache.add(), both_a = cache.add(), both_b = cache.add();
  std::vector<float> alone = device_->run(alone_a, a, true, 300);
  const std::vector<float> second = device_->run(alone_b, b, true, 150);
  alone.insert(alone.end(), second.begin(), second.end());
  EXPECT_LT(relative_difference(alone, device_->step({{both_a, a, true}, {both_b, b, true}})), same_);
  for (int i = 0; i < 3; ++i) {
    const auto one = std::span(a).subspan(i, 1), other = std::span(b).subspan(i, 1);
    std::vector<float> expected = device_->step({{alone_a, one}});
    const std::vector<float> of_b = device_->step({{alone_b, other}});
    expected.insert(expected.end(), of_b.begin(), of_b.end());
    EXPECT_LT(relative_difference(expected, device_->step({{both_a, one}, {both_b, other}})), same_);
  }
}

TEST_P(DeviceEngine, ForksShareAndDontDisturbEachOther) {
  expect_forks_share(200, 330, 90, same_);
}

TEST_P(DeviceEngine, CutBackGoesOnAsTheCpuDoes) {
  const auto tokens = some_tokens(420, 6), other = some_tokens(140, 7);
  // The cuts lie in the tail, in sealed pages, between pages, and in the first page.
  for (const int length : {400, 300, 256, 70}) {
    const SequenceId expected = host_->cache().add(), sequence = device_->cache().add();
    for (const auto& [machine, id] : {std::pair{host_.get(), expected}, {device_.get(), sequence}}) {
      machine->run(id, std::span(tokens).first(200), true, 200);
      ASSERT_TRUE(machine->cache().checkpoint(id).ok());
      machine->run(id, std::span(tokens).subspan(200), true, 220);
    }
    // With a correction, both engines refuse a cut at which they have no checkpoint.
    const bool cut = host_->cache().truncate(expected, length).ok();
    ASSERT_EQ(device_->cache().truncate(sequence, length).ok(), cut) << length;
    EXPECT_TRUE(cut || length == 70) << length;
    if (!cut) continue;
    EXPECT_LT(
        relative_difference(host_->run(expected, other, false, 1), device_->run(sequence, other, false, 1)),
        close_)
        << length;
  }
}

// A draft has at most as many tokens as the cache can remove exactly (rewindable_tokens.h).
TEST_P(DeviceEngine, ARejectedDraftLeavesNothingBehind) {
  const auto tokens = some_tokens(300, 8), wrong = some_tokens(16, 9);
  Cache& cache = device_->cache();
  const SequenceId sequence = cache.add();
  int length = 0;
  for (const int next : {100, 126, 251, 254, 256, 270}) {
    device_->run(sequence, std::span(tokens).subspan(length, next - length), length == 0, 64);
    length = next;
    const int draft = std::min<int>(rewindable_tokens(cache, sequence), std::ssize(wrong));
    ASSERT_GT(draft, 0) << length;
    const auto before = cache.export_sequence(sequence);
    ASSERT_TRUE(before.ok()) << before.error().message;
    device_->run(sequence, std::span(wrong).first(draft), false, draft);
    const auto drafted = cache.export_sequence(sequence);
    ASSERT_TRUE(drafted.ok()) << drafted.error().message;
    EXPECT_NE(*drafted, *before) << length;
    const Status cut = cache.truncate(sequence, length);
    ASSERT_TRUE(cut.ok()) << cut.error().message;
    const auto after = cache.export_sequence(sequence);
    ASSERT_TRUE(after.ok()) << after.error().message;
    EXPECT_EQ(*after, *before) << length;
  }
}

TEST_P(DeviceEngine, ASequenceOfTheCpuGoesOn) {
  expect_import_goes_on(420, 200, close_);
}

TEST_P(DeviceEngine, AbortLeavesTheSequenceAsItWas) {
  expect_abort_changes_nothing(same_);
}

TEST_P(DeviceEngine, FillsForBenchmarks) {
  expect_fills_for_benchmarks(300);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, DeviceEngine,
    ::testing::Combine(
        ::testing::Values(
            "bf16", "kvant-4bit", "kivi-4bit", "turbo3", "k=hadamard:ch4g128,v=tok4g128,sink=20,prefill=256",
            "k=ch4g128,v=tok4g128,sink=128", "vecinfer-2bit", "kvlinc-2bit",
            "k=ch4g128,v=tok4g128,sink=20,correction=absolute,correction_layers=1",
            "k=prog4,v=prog4,sink=4,mix=0.5,mix_k=prog2,mix_v=prog2,softmax=sas",
            "k=nvq-d4b10,v=tok4g64,v@1.0=vq-d8b12,window=128", "vquant-k4v2",
            "k=hadamard:ch4g128,v=hadamard:tok4g128,sink=4,window=0,prefill=256,protect=0.1",
            "k=hadamard+rhadamard:tok8g64,v=hadamard+rhadamard:tok4g64,v@1.0=tok2g64,window=256",
            "k=ch4g128,v=tok4g128,k@0.0=ch2g128,v@0.1=fp8,k@1.1=tok8g64,v@1.0=tok2g64,sink=4",
            "k=ch4g128,v=tok4g128,k@0.1=tok8g64,v@1.0=tok2g64,sink=4,window=128,protect=0.1",
            "bf16,prompt=flashq", "kvant-4bit,prompt=flashq", "vecinfer-2bit,prompt=flashq",
            "k=hadamard:ch4g128,v=tok4g128,sink=20,prefill=256,prompt=flashq",
            "k=hadamard+rhadamard:tok8g64,v=hadamard+rhadamard:tok4g64,v@1.0=tok2g64,window=256,"
            "prompt=flashq"),
        ::testing::ValuesIn(kPlaces)));

// Only the device in host memory is compared, because its library encodes exactly like the CPU.
INSTANTIATE_TEST_SUITE_P(ShapedErrors, DeviceEngine,
                         ::testing::Combine(::testing::Values("k=hadamard:tcq2,v=hadamard:tcq2,sink=4,"
                                                              "encode=shaped",
                                                              "k=tcq3,v=tcq2,k@0.0=tcq1,k@1.1=ch4g128,"
                                                              "encode=shaped"),
                                            ::testing::Values(kPlaces[0])));

// The models vary the norms, the biases, the fused weights, and the weights' types between tokens and logits.
TEST(DeviceModels, GiveTheLogitsOfTheCpu) {
  const auto with = [](const char* architecture, const std::function<void(TinyModel&)>& change) {
    TinyModel model{.architecture = architecture};
    change(model);
    return model;
  };
  const TinyModel models[] = {
      with("llama", [](TinyModel& m) { m.rope_freqs = m.tied = true; }),
      with("qwen2", [](TinyModel& m) { m.qkv_bias = true, m.head_dim = 128; }),
      with("qwen3", [](TinyModel& m) { m.qk_norm = true, m.matrix_type = GGML_TYPE_BF16; }),
      with("phi3", [](TinyModel& m) { m.fused_qkv = m.fused_gate_up = true; }),
      with("phi2",
           [](TinyModel& m) {
             m.layer_norm = m.qkv_bias = m.out_bias = m.ffn_bias = m.ungated = m.output_bias = true;
             m.ffn_norm = false;
           }),
      with("olmo2", [](TinyModel& m) { m.qk_norm_of_rows = m.post_norms = true, m.pre_norms = false; }),
      with("hunyuan-dense", [](TinyModel& m) { m.qk_norm = true; }),
      with("smollm3", [](TinyModel& m) { m.n_layers = 4; }),
      with("granite",
           [](TinyModel& m) {
             m.numbers = {{"logit_scale", 0.5F}, {"residual_scale", 0.4F}, {"embedding_scale", 3.0F}};
           }),
      with("qwen2moe",
           [](TinyModel& m) {
             m.qkv_bias = m.shared_gate = true;
             m.n_experts = 8, m.n_ff_shared = 160;
             m.integers = {{"expert_used_count", 3}};
           }),
      with("glm4moe",
           [](TinyModel& m) {
             m.ffn_norm_name = "post_attention_norm";
             m.choice_bias = true;
             m.n_experts = 8, m.n_dense = 1, m.n_ff_shared = 48;
             m.integers = {{"expert_used_count", 2}};
             m.booleans = {{"expert_weights_norm", true}};
             m.numbers = {{"expert_weights_scale", 2.5F}};
           }),
      model_of(expert_variants(), "bailingmoe2"),  // this model has experts in groups
      model_of(dense_variants(), "mistral3"),      // the queries of mistral3 grow with their positions
  };
  for (const Place& place : kPlaces) {
    const auto device = device_at(place);
    for (const TinyModel& model : models) {
      if (device == nullptr) continue;
      const TinyFile file(model.architecture + ".gguf");
      TinyModelWriter(model).write(file.path());
      Machine on_host(file.path(), "bf16", nullptr), on_device(file.path(), "bf16", device);
      const auto tokens = some_tokens(150, 10);
      const auto differences =
          row_differences(on_host.run(on_host.cache().add(), tokens, true, 150),
                          on_device.run(on_device.cache().add(), tokens, true, 150), on_host.n_vocab());
      ASSERT_EQ(differences.size(), 150U);
      // On a device, a token with two equally good experts may use another one of the two than on the CPU.
      const int n_tied = model.n_experts > 0 ? 8 : 0;
      EXPECT_LT(differences[149 - n_tied], 0.025) << model.architecture << " on " << place.name;
      EXPECT_LT(differences[75], 0.01) << model.architecture << " on " << place.name;
    }
  }
}

// Prompts and decoded tokens reach beyond several windows, over unquantized and sealed pages.
TEST(DeviceModels, GiveTheLogitsOfTheCpuWithWindowsCapsAndSinkLogits) {
  TinyModel gemma2{
      .architecture = "gemma2", .n_layers = 4, .head_dim = 128, .post_norms = true, .tied = true};
  gemma2.integers = {{"attention.sliding_window", 200}};
  gemma2.numbers = {{"attn_logit_softcapping", 5.0F}, {"final_logit_softcapping", 7.0F}};
  TinyModel gemma3{
      .architecture = "gemma3", .n_layers = 7, .qk_norm = true, .post_norms = true, .tied = true};
  gemma3.head_dim = 256;
  gemma3.integers = {{"attention.sliding_window", 48}};
  TinyModel gpt_oss{
      .architecture = "gpt-oss", .ffn_norm_name = "post_attention_norm", .sinks = true, .n_experts = 4};
  gpt_oss.integers = {{"expert_used_count", 2}, {"attention.sliding_window", 128}};
  for (const Place& place : kPlaces) {
    const auto device = device_at(place);
    if (device == nullptr) continue;
    for (const TinyModel& model : {gemma2, gemma3, gpt_oss}) {
      const TinyFile file(model.architecture + "_scores.gguf");
      TinyModelWriter(model).write(file.path());
      for (const char* recipe :
           {"bf16", "k=ch4g128,v=tok4g128,sink=4", "k=ch4g128,v=tok4g128,sink=4,protect=0.1",
            "k=ch4g128,v=tok4g128,sink=4,prompt=flashq", "k=ch4g128,v=tok4g128,sink=4,softmax=sas"}) {
        // INT8 prompt attention and SAS support windows, but neither caps nor sink logits.
        const std::string rules(recipe);
        if ((rules.ends_with("flashq") || rules.ends_with("sas")) && model.architecture != "gemma3") continue;
        Machine on_host(file.path(), recipe, nullptr), on_device(file.path(), recipe, device);
        const auto tokens = some_tokens(430, 10);
        std::vector<double> differences[2];
        for (const bool is_prompt : {true, false}) {
          // One run reads a prompt and decodes some tokens. The other decodes every token after the first.
          std::vector<float> logits[2];
          for (Machine* machine : {&on_host, &on_device}) {
            const SequenceId sequence = machine->cache().add();
            const int first = is_prompt ? 400 : 40;
            std::vector<float>& of = logits[machine == &on_device];
            of = machine->run(sequence, std::span(tokens).first(first), true, first);
            const auto rest = machine->run(sequence, std::span(tokens).subspan(first), false,
                                           is_prompt || machine == &on_host ? 1 : 30);
            of.insert(of.end(), rest.begin(), rest.end());
          }
          differences[is_prompt] = row_differences(logits[0], logits[1], on_host.n_vocab());
        }
        const bool exact = recipe == std::string("bf16");
        for (const auto& of_rows : differences) {
          ASSERT_EQ(of_rows.size(), 430U);
          EXPECT_LT(of_rows[215], exact ? 0.01 : 0.1) << model.architecture << " " << recipe << place.name;
          EXPECT_LT(of_rows[400], exact ? 0.03 : 0.2) << model.architecture << " " << recipe << place.name;
        }
      }
    }
  }
}

// The engine must report a missing kernel or graph before anything runs.
TEST(DeviceModels, RefuseWhatTheyHaveNoPlaceFor) {
  TinyModel gpt_oss{
      .architecture = "gpt-oss", .ffn_norm_name = "post_attention_norm", .sinks = true, .n_experts = 4};
  gpt_oss.integers = {{"expert_used_count", 2}};
  const TinyFile file("sinks_device.gguf");
  TinyModelWriter(gpt_oss).write(file.path());
  const auto device = std::make_shared<HostDevice>();
  const auto engine = Engine::load(file.path(), {.n_threads = 1, .device = device}).value();
  const auto plan = resolve(parse_recipe("bf16,prompt=flashq").value(), engine->geometry(), nullptr).value();
  const auto placed = make_device_backend(device->pages())->place(plan);
  ASSERT_FALSE(placed.ok());
  EXPECT_NE(placed.error().message.find("sink logits"), std::string::npos) << placed.error().message;

  TinyModel wide = tiny_hybrid();
  wide.delta_head_dim = 96;
  const auto hybrid = write_tiny_model(wide);
  const auto refused_hybrid = Engine::load(hybrid->path(), {.n_threads = 1, .device = device});
  ASSERT_FALSE(refused_hybrid.ok());
  EXPECT_NE(refused_hybrid.error().message.find("delta nets of such heads"), std::string::npos)
      << refused_hybrid.error().message;
}

// INT8 prompt attention on a device does not support soft caps.
TEST(DeviceModels, SayWhereTheirPromptsAreAttendedTo) {
  const auto refusal = [](const TinyModel& model, AttentionBackend& backend) {
    const TinyFile file("flashq_device.gguf");
    TinyModelWriter(model).write(file.path());
    const auto engine = Engine::load(file.path(), {.n_threads = 1}).value();
    const auto plan = resolve(parse_recipe("bf16,prompt=flashq").value(), engine->geometry(), nullptr);
    const auto placed = backend.place(plan.value());
    return placed.ok() ? "" : placed.error().message;
  };
  const auto on_device = make_device_backend(std::make_shared<HostDevice>()->pages());
  EXPECT_EQ(refusal({.head_dim = 128}, *on_device), "");
  EXPECT_EQ(refusal({.head_dim = 256}, *on_device), "");
  TinyModel capped{.architecture = "gemma2", .n_layers = 2, .post_norms = true, .tied = true};
  capped.integers = {{"attention.sliding_window", 200}};
  capped.numbers = {{"attn_logit_softcapping", 5.0F}};
  EXPECT_NE(refusal(capped, *on_device).find("soft-capped scores"), std::string::npos);
  EXPECT_EQ(refusal(capped, *make_reference_backend()), "");
  EXPECT_EQ(refusal(capped, *make_cpu_backend()), "");
}

class DeviceWeightPlaces : public ::testing::TestWithParam<Place> {};

// Results must not depend on which memory holds the weights, whatever the weights' type is. Rows have 160
// values, which is not a multiple of what kernels read at once.
TEST_P(DeviceWeightPlaces, MayBeTheHostsMemory) {
  const auto device = device_at(GetParam());
  if (device == nullptr) GTEST_SKIP() << "no such device";
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_1}) {
    TinyModel model;
    model.n_ff = 160;
    model.matrix_type = type;
    const TinyFile file("places_device.gguf");
    TinyModelWriter(model).write(file.path());
    const auto logits = [&](int device_layers, std::int64_t& host_bytes) {
      EngineOptions options{.n_threads = 1, .device = device};
      options.device_layers = device_layers;
      const auto engine = Engine::load(file.path(), options).value();
      host_bytes = engine->host_weight_bytes();
      const auto backend = make_device_backend(device->pages());
      const auto plan = resolve(parse_recipe("bf16").value(), engine->geometry(), nullptr).value();
      Cache cache(backend->place(plan).value(), 0);
      const auto tokens = some_tokens(40, 1);
      const EngineInput input{cache.add(), tokens, /*is_prompt=*/true, 0};
      std::vector<float> result(tokens.size() * engine->n_vocab());
      const Status status = engine->step(cache, *backend, {&input, 1},
                                         {result.data(), static_cast<int>(tokens.size()), engine->n_vocab()});
      EXPECT_TRUE(status.ok()) << status.error().message;
      return result;
    };
    std::int64_t of_none = 0, of_some = 0, of_all = 0;
    const auto expected = logits(1000, of_none);
    EXPECT_LT(relative_difference(expected, logits(1, of_some)), 1e-6) << ggml_type_name(type);
    EXPECT_LT(relative_difference(expected, logits(0, of_all)), 1e-6) << ggml_type_name(type);
    EXPECT_EQ(of_none, 0);
    EXPECT_GT(of_some, 0);
    EXPECT_GT(of_all, of_some);
  }
}

INSTANTIATE_TEST_SUITE_P(Places, DeviceWeightPlaces, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DeviceEngineMemory, RunsOutWithAnError) {
  const TinyFile file("small_device.gguf");
  TinyModelWriter(TinyModel{}).write(file.path());
  const auto device = std::make_shared<HostDevice>(/*limit=*/std::size_t{2} << 20);
  const auto engine = Engine::load(file.path(), {.n_threads = 1, .device = device}).value();
  const auto backend = make_device_backend(device->pages());
  Cache cache(
      backend->place(resolve(parse_recipe("bf16").value(), engine->geometry(), nullptr).value()).value(), 0);
  const SequenceId sequence = cache.add();
  const auto tokens = some_tokens(512, 1);
  Status status;
  while (status.ok() && cache.length(sequence) < 100000) {
    const EngineInput input{sequence, tokens, /*is_prompt=*/true, 512};
    const int before = cache.length(sequence);
    status = engine->step(cache, *backend, {&input, 1}, {nullptr, 0, engine->n_vocab()});
    if (!status.ok()) {
      EXPECT_EQ(cache.length(sequence), before);
    }
  }
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("out of memory"), std::string::npos) << status.error().message;
}

// In a step with one token per sequence, the library's attention call also appends the token.
TEST(DeviceEngine, AppendsSingleTokensAsItAttends) {
  const TinyFile file("single_tokens.gguf");
  TinyModelWriter(TinyModel{}).write(file.path());
  const auto device = std::make_shared<HostDevice>();
  const auto engine = Engine::load(file.path(), {.n_threads = 1, .device = device}).value();
  const auto backend = make_device_backend(device->pages());
  const auto plan = resolve(parse_recipe("kvant-4bit").value(), engine->geometry(), nullptr);
  Cache cache(backend->place(plan.value()).value(), 0);
  const SequenceId sequences[] = {cache.add(), cache.add()};
  const auto tokens = some_tokens(2, 1);
  const auto step = [&](int n_tokens) {
    std::vector<EngineInput> inputs;
    for (const SequenceId sequence : sequences)
      inputs.push_back({sequence, std::span(tokens).first(n_tokens), /*is_prompt=*/true, n_tokens});
    return engine->step(cache, *backend, inputs, {nullptr, 0, engine->n_vocab()});
  };
  device->host_pages().functions().append = [](const auto*, const auto*, const auto*, kvant_stream) {
    return KVANT_DEVICE_ERROR;
  };
  EXPECT_TRUE(step(1).ok());
  EXPECT_FALSE(step(2).ok());  // a step of two tokens per sequence calls append, which fails here
}

// The helper expects that a step fails and leaves the sequence unchanged.
TEST(DeviceEngineFailures, AreErrorsOfTheStep) {
  const TinyFile file("failing_device.gguf");
  TinyModelWriter(TinyModel{}).write(file.path());
  const auto device = std::make_shared<HostDevice>();
  testing::HostPages& pages = device->host_pages();
  const auto engine = Engine::load(file.path(), {.n_threads = 1, .device = device}).value();
  const auto backend = make_device_backend(device->pages());
  const auto plan = resolve(parse_recipe("kvant-4bit").value(), engine->geometry(), nullptr);
  Cache cache(backend->place(plan.value()).value(), 0);
  const SequenceId sequence = cache.add();
  const auto tokens = some_tokens(400, 1);
  const auto step = [&](int n_tokens) {
    const EngineInput input{sequence, std::span(tokens).first(n_tokens), /*is_prompt=*/true, n_tokens};
    return engine->step(cache, *backend, {&input, 1}, {nullptr, 0, engine->n_vocab()});
  };
  ASSERT_TRUE(step(1).ok());
  const auto expect_failure = [&](const Status& status, const std::string& reason) {
    ASSERT_FALSE(status.ok()) << reason;
    EXPECT_NE(status.error().message.find(reason), std::string::npos) << status.error().message;
    EXPECT_FALSE(status.error().is_shortage);
    EXPECT_EQ(cache.length(sequence), 1);
  };
  const PageLibrary works = pages.functions();
  pages.functions().last_error = [] { return "no kernel image"; };
  pages.functions().decode_workspace = [](const auto*, std::size_t*) { return KVANT_DEVICE_ERROR; };
  // No earlier step had this many rows, so the workspace must be measured.
  expect_failure(step(2), "no kernel image");
  pages.functions().decode_workspace = works.decode_workspace;
  pages.functions().decode_schedule = [](const auto*, const auto*, void*, std::size_t, kvant_stream) {
    return KVANT_DEVICE_ERROR;
  };
  expect_failure(step(1), "no kernel image");
  pages.functions() = works;
  pages.fail(error("the host failed: an illegal address"));  // the error comes from earlier work
  expect_failure(step(400), "an illegal address");
  EXPECT_TRUE(step(399).ok());
  EXPECT_EQ(cache.length(sequence), 400);
}

}  // namespace
}  // namespace kvant
