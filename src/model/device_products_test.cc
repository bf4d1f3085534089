// Tests a device's engine that multiplies in F32, against an engine whose weights were expanded to F32
// beforehand.
#include <gtest/gtest.h>

#include "model/device_machine.h"

namespace kvant {
namespace {

using testing::device_at;
using testing::kPlaces;
using testing::Place;
using testing::relative_difference;
using testing::some_tokens;
using testing::with_whole_blocks;

TinyModel with(ggml_type type, TinyModel model = {}) {
  model.matrix_type = type;
  return model;
}

TinyModel experts(ggml_type type) {
  TinyModel model{.architecture = "qwen3moe", .qk_norm = true, .n_experts = 4, .n_ff_expert = 64};
  model.integers = {{"expert_used_count", 2}};
  return with(type, model);
}

std::vector<float> logits_of(Engine& engine, AttentionBackend& backend) {
  const auto tokens = some_tokens(150, 1);
  const auto plan = backend.place(resolve(Recipe{}, engine.geometry(), nullptr).value()).value();
  Cache cache(plan, 0);
  const EngineInput input{cache.add(), tokens, /*is_prompt=*/true};
  std::vector<float> logits(tokens.size() * engine.n_vocab());
  const Status status = engine.step(cache, backend, {&input, 1},
                                    {logits.data(), static_cast<int>(tokens.size()), engine.n_vocab()});
  EXPECT_TRUE(status.ok()) << status.error().message;
  return logits;
}

class DeviceProductsInF32 : public ::testing::TestWithParam<Place> {};

TEST_P(DeviceProductsInF32, DontRoundWhatWeightsAreMultipliedBy) {
  const auto device = device_at(GetParam());
  if (device == nullptr) GTEST_SKIP() << "no such device";
  for (const TinyModel& model : {with(GGML_TYPE_Q4_0), with(GGML_TYPE_BF16), experts(GGML_TYPE_Q4_0),
                                 with(GGML_TYPE_Q4_0, with_whole_blocks(tiny_hybrid()))}) {
    SCOPED_TRACE(model.architecture + " " + ggml_type_name(model.matrix_type));
    const auto file = write_tiny_model(model);
    const auto engine = Engine::load(file->path(), {.n_threads = 1, .device = device}).value();
    const auto cpu = Engine::load(file->path(), {.n_threads = 1, .weights = WeightMode::f32}).value();
    EXPECT_EQ(cpu->in_f32(), nullptr);
    const auto backend = make_device_backend(device->pages()), reference = make_reference_backend();
    const auto expected = logits_of(*cpu, *reference), rounded = logits_of(*engine, *backend);
    const auto found = logits_of(*engine->in_f32(), *backend);
    EXPECT_LT(relative_difference(expected, found), 2e-3);  // queries and rows are BF16 in the cache
    EXPECT_LT(relative_difference(expected, found), relative_difference(expected, rounded) / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Places, DeviceProductsInF32, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvant
