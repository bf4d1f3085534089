// Tests a device's engine against the CPU's engine. The device's cache lies in host memory, where the CPU
// attends.
#include "model/host_attention.h"

#include <gtest/gtest.h>

#include <set>

#include "model/device_machine.h"
#include "model/tiny_variants.h"

namespace kvant {
namespace {

using testing::device_at;
using testing::HostDevice;
using testing::kPlaces;
using testing::Machine;
using testing::Place;
using testing::relative_difference;
using testing::row_differences;
using testing::some_tokens;

// These models cover heads of 512 channels, layers with different heads, shared caches, layers' own
// embeddings, and experts next to a network. Every other variation of a graph has one model.
std::vector<Variant> models() {
  std::vector<Variant> some = variants_of_unlike_layers();
  const std::set<std::string> names{"gemma2", "phi3", "olmo2", "smollm3", "gpt_oss", "gemma4_experts"};
  for (const auto& of : {variants(), dense_variants(), expert_variants()}) {
    for (const Variant& v : of) {
      if (names.contains(v.name)) some.push_back(v);
    }
  }
  return some;
}

class HostAttentionOfADevice : public ::testing::TestWithParam<std::tuple<Variant, Place>> {};

TEST_P(HostAttentionOfADevice, GivesTheLogitsOfTheCpu) {
  const auto& [variant, place] = GetParam();
  const auto device = device_at(place);
  if (device == nullptr) GTEST_SKIP() << "no such device";
  const auto file = write_tiny_model(variant.model);
  Machine on_cpu(file->path(), "bf16", nullptr),
      on_device(file->path(), "bf16", device, /*kv_offload=*/false);
  const auto tokens = some_tokens(330, 1);
  const auto expected = on_cpu.read_and_decode(on_cpu.cache().add(), tokens, 300, 300, 1);
  for (const int chunk : {300, 77}) {
    const auto found = on_device.read_and_decode(on_device.cache().add(), tokens, 300, chunk, 1);
    const auto differences = row_differences(expected, found, on_cpu.n_vocab());
    ASSERT_EQ(differences.size(), 330U);
    // On a device, a token with two equally good experts may use another one of the two than on the CPU.
    const int n_tied = variant.model.n_experts > 0 ? 16 : 0;
    EXPECT_LT(differences[329 - n_tied], 0.025) << chunk;
    EXPECT_LT(differences[165], 0.01) << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HostAttentionOfADevice,
                         ::testing::Combine(::testing::ValuesIn(models()), ::testing::ValuesIn(kPlaces)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param).name;
                         });

// No device supports eviction or formats without a sealing kernel, so the host serves such recipes. The host
// also serves a correction.
TEST(HostAttention, ServesRecipesThatTheDeviceRefuses) {
  const auto file = write_tiny_model(TinyModel{});
  const auto device = std::make_shared<HostDevice>();
  const auto tokens = some_tokens(330, 2);
  for (const char* recipe : {"h2o-50", "gear-l-4bit", "k=pq-d4b8,v=pq-d4b8,window=128", "kvlinc-2bit"}) {
    Machine on_cpu(file->path(), recipe, nullptr),
        on_device(file->path(), recipe, device, /*kv_offload=*/false);
    const auto expected = on_cpu.read_and_decode(on_cpu.cache().add(), tokens, 300, 300, 1);
    const auto found = on_device.read_and_decode(on_device.cache().add(), tokens, 300, 300, 1);
    EXPECT_LT(relative_difference(expected, found), 0.05) << recipe;
  }
}

TEST(HostAttention, TakesSeveralSequencesAStep) {
  const auto file = write_tiny_model(TinyModel{});
  Machine machine(file->path(), "kvant-4bit", std::make_shared<HostDevice>(), /*kv_offload=*/false);
  const auto a = some_tokens(200, 3), b = some_tokens(90, 4);
  std::vector<float> alone = machine.run(machine.cache().add(), a, true, 200);
  const auto of_b = machine.run(machine.cache().add(), b, true, 90);
  alone.insert(alone.end(), of_b.begin(), of_b.end());
  const auto together = machine.step({{machine.cache().add(), a, true}, {machine.cache().add(), b, true}});
  EXPECT_LT(relative_difference(alone, together), 1e-3);
}

// An error of attention must become the step's error and leave the sequence unchanged.
TEST(HostAttention, FailsWithItsStep) {
  class Failing : public BackendDecorator {
   public:
    using BackendDecorator::BackendDecorator;
    void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
      inner().run_layer(step, layer, rows, team);
      if (layer == 1) team.once([&] { step.fail(error("layer {} is broken", layer)); });
    }
  };
  const auto file = write_tiny_model(TinyModel{});
  const auto engine =
      Engine::load(file->path(), {.n_threads = 2, .device = std::make_shared<HostDevice>()}).value();
  const auto backend = make_reference_backend();
  Failing failing(*backend);
  Cache cache(resolve(parse_recipe("bf16").value(), engine->geometry(), nullptr).value(), 0);
  const SequenceId sequence = cache.add();
  const auto tokens = some_tokens(20, 5);
  const EngineInput input{sequence, tokens, /*is_prompt=*/true, 20};
  const Status status = engine->step(cache, failing, {&input, 1}, {nullptr, 0, engine->n_vocab()});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "layer 1 is broken");
  EXPECT_EQ(cache.length(sequence), 0);
  EXPECT_TRUE(engine->step(cache, *backend, {&input, 1}, {nullptr, 0, engine->n_vocab()}).ok());
  EXPECT_EQ(cache.length(sequence), 20);
}

// The device itself must attend for Gemma 4, with heads of 256 and 512 channels, layers with different heads,
// and shared caches.
TEST(DeviceModels, OfGemma4HaveTheCpusLogits) {
  for (const Place& place : kPlaces) {
    const auto device = device_at(place);
    if (device == nullptr) continue;
    for (const Variant& variant : variants_of_unlike_layers()) {
      const auto file = write_tiny_model(variant.model);
      for (const char* recipe : {"bf16", "kvant-4bit"}) {
        Machine on_cpu(file->path(), recipe, nullptr), on_device(file->path(), recipe, device);
        const auto tokens = some_tokens(300, 6);
        const auto expected = on_cpu.read_and_decode(on_cpu.cache().add(), tokens, 280, 280, 1);
        const auto found = on_device.read_and_decode(on_device.cache().add(), tokens, 280, 280, 1);
        EXPECT_LT(relative_difference(expected, found), place.from_cpu)
            << variant.name << " " << recipe << " on " << place.name;
      }
    }
  }
}

}  // namespace
}  // namespace kvant
