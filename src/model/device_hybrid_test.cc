// Tests models with gated delta nets and attention. The tests compare the engine on a device with the CPU's
// engine.
#include <gtest/gtest.h>

#include <cstring>

#include "model/device_machine.h"
#include "model/hparams.h"
#include "model/tiny_variants.h"

namespace kvant {
namespace {

using testing::device_at;
using testing::HostAndDevice;
using testing::kPlaces;
using testing::Machine;
using testing::Place;
using testing::relative_difference;
using testing::row_differences;
using testing::some_tokens;
using testing::with_whole_blocks;

class DeviceHybrid : public ::testing::TestWithParam<std::tuple<const char*, Place>>,
                     protected HostAndDevice {
 protected:
  DeviceHybrid()
      : HostAndDevice("hybrid_device.gguf"),
        same_(std::get<1>(GetParam()).between_ways),
        close_(std::get<1>(GetParam()).from_cpu) {}
  void SetUp() override {
    TinyModel model = with_whole_blocks(tiny_hybrid());
    model.n_layers = 5;  // the last layer is a delta net
    if (!load(std::get<1>(GetParam()), model, std::get<0>(GetParam()))) GTEST_SKIP() << "no such device";
  }
  const Geometry& geometry() const { return device_->cache().plan().geometry; }

  double same_, close_;  // Place explains the two values
};

TEST_P(DeviceHybrid, GivesTheLogitsOfTheCpuWhateverTheCut) {
  // 2 is less than the width of the convolution.
  expect_logits_of_the_cpu({300, 128, 77, 2}, 30, close_, same_);
}

// A step without logits ends with the last delta net, whose states must still be written.
TEST_P(DeviceHybrid, StatesGoOnWhereNoLogitsAreWanted) {
  const auto tokens = some_tokens(60, 13);
  const SequenceId expected = device_->cache().add(), sequence = device_->cache().add();
  const std::vector<float> logits = device_->run(expected, tokens, true, 60);
  const EngineInput silent{sequence, std::span(tokens).first(59), /*is_prompt=*/true, /*first_logits=*/59};
  device_->step_without_logits({silent});
  const std::vector<float> last = device_->run(sequence, std::span(tokens).last(1), false, 1);
  EXPECT_LT(
      relative_difference({logits.end() - static_cast<std::ptrdiff_t>(last.size()), logits.end()}, last),
      same_);
}

// Steps combine prompts of different lengths, a prompt and a decoded token, or several of each.
TEST_P(DeviceHybrid, SequencesOfOneStepAreEachAsAlone) {
  const auto a = some_tokens(200, 2), b = some_tokens(50, 3), c = some_tokens(50, 4);
  Cache& cache = device_->cache();
  std::vector<SequenceId> alone, together;
  for (int i = 0; i < 3; ++i) {
    alone.push_back(cache.add());
    together.push_back(cache.add());
  }
  std::vector<float> expected;
  const auto run_alone = [&](int i, std::span<const std::int32_t> tokens, bool is_prompt) {
    const std::vector<float> logits = device_->run(alone[i], tokens, is_prompt, 200);
    expected.insert(expected.end(), logits.begin(), logits.end());
  };
  run_alone(0, a, true);
  run_alone(1, b, true);
  EXPECT_LT(relative_difference(expected, device_->step({{together[0], a, true}, {together[1], b, true}})),
            same_);
  for (int i = 0; i < 3; ++i) {
    const auto one = std::span(a).subspan(i, 1), other = std::span(b).subspan(i, 1);
    expected.clear();
    run_alone(0, one, false);
    run_alone(1, other, false);
    if (i == 0) run_alone(2, c, true);
    if (i == 2) run_alone(2, one, false);
    std::vector<EngineInput> inputs{{together[0], one}, {together[1], other}};
    if (i == 0) inputs.push_back({together[2], c, true});
    if (i == 2) inputs.push_back({together[2], one});
    EXPECT_LT(relative_difference(expected, device_->step(inputs)), same_) << i;
  }
}

TEST_P(DeviceHybrid, ForksShareStatesAndDontDisturbEachOther) {
  const auto tokens = some_tokens(230, 4);
  const auto one = std::span(tokens).first(200), rest = std::span(tokens).subspan(200);
  Cache& cache = device_->cache();
  const SequenceId whole = cache.add(), trunk = cache.add();
  device_->run(whole, one, true, 200);
  const std::vector<float> expected = device_->run(whole, rest, false, 1);
  device_->run(trunk, one, true, 200);
  const std::int64_t before = cache.page_bytes_in_use(), all = cache.bytes().recurrent;
  EXPECT_EQ(cache.bytes(trunk).recurrent, geometry().recurrent_bytes());
  EXPECT_EQ(all, 2 * geometry().recurrent_bytes());
  const SequenceId branch = cache.fork(trunk).value();
  EXPECT_EQ(cache.page_bytes_in_use(), before);
  EXPECT_EQ(cache.bytes().recurrent, all);
  device_->run(branch, some_tokens(40, 5), false, 1);
  EXPECT_EQ(cache.bytes().recurrent, all + geometry().recurrent_bytes());
  EXPECT_LT(relative_difference(expected, device_->run(trunk, rest, false, 1)), same_);
  cache.free(branch);
  cache.free(trunk);
  cache.free(whole);
  EXPECT_EQ(cache.page_bytes_in_use(), 0);
}

// A step may find its states where the previous step left them, but not after another sequence's step, a cut,
// or an aborted step.
TEST_P(DeviceHybrid, GoesOnFromItsOwnStateWhateverLiesWhereGraphsFindIt) {
  const auto tokens = some_tokens(120, 14), other = some_tokens(8, 15);
  Cache& cache = device_->cache();
  const SequenceId whole = cache.add(), sequence = cache.add(), neighbor = cache.add();
  const auto some = [&](int first, int n) { return std::span(tokens).subspan(first, n); };
  device_->run(whole, some(0, 100), true, 100);
  const std::vector<float> expected = device_->run(whole, some(100, 20), false, 1);
  std::vector<float> found;
  const auto decode = [&](int first, int n) {
    const std::vector<float> logits = device_->run(sequence, some(first, n), false, 1);
    found.insert(found.end(), logits.begin(), logits.end());
  };
  device_->run(sequence, some(0, 100), true, 100);
  decode(100, 4);
  device_->run(neighbor, other, false, 1);
  decode(104, 4);
  ASSERT_TRUE(cache.checkpoint(sequence).ok());
  device_->run(sequence, other, false, 1);
  ASSERT_TRUE(cache.truncate(sequence, 108).ok());
  decode(108, 4);
  cache.reserve({{sequence, 3, false}}).value()->abort();
  decode(112, 4);
  const SequenceId branch = cache.fork(sequence).value();
  device_->run(branch, other, false, 1);
  cache.free(branch);
  decode(116, 4);
  EXPECT_LT(relative_difference(expected, found), same_);
}

TEST_P(DeviceHybrid, CutBackToItsCheckpointGoesOnAsTheCpuDoes) {
  const auto tokens = some_tokens(300, 6), other = some_tokens(100, 7);
  const SequenceId expected = host_->cache().add(), sequence = device_->cache().add();
  for (const auto& [machine, id] : {std::pair{host_.get(), expected}, {device_.get(), sequence}}) {
    machine->run(id, std::span(tokens).first(200), true, 200);
    ASSERT_TRUE(machine->cache().checkpoint(id).ok());
    machine->run(id, std::span(tokens).subspan(200), true, 100);
    EXPECT_FALSE(machine->cache().truncate(id, 250).ok());
    ASSERT_TRUE(machine->cache().truncate(id, 200).ok());
  }
  EXPECT_LT(
      relative_difference(host_->run(expected, other, false, 1), device_->run(sequence, other, false, 1)),
      close_);
  ASSERT_TRUE(device_->cache().truncate(sequence, 0).ok());
  const SequenceId fresh = device_->cache().add();
  EXPECT_LT(
      relative_difference(device_->run(fresh, other, true, 100), device_->run(sequence, other, true, 100)),
      same_);
}

TEST_P(DeviceHybrid, ASequenceOfTheCpuGoesOn) {
  const SequenceId sequence = expect_import_goes_on(300, 60, close_);
  // The imported sequence included the checkpoint, so the cut can return to its state.
  ASSERT_TRUE(device_->cache().truncate(sequence, 200).ok());
}

TEST_P(DeviceHybrid, AbortLeavesTheSequenceAsItWas) {
  expect_abort_changes_nothing(same_);
}

INSTANTIATE_TEST_SUITE_P(Recipes, DeviceHybrid,
                         ::testing::Combine(::testing::Values("bf16", "kvant-4bit", "kvlinc-2bit"),
                                            ::testing::ValuesIn(kPlaces)));

// Returns the states of a sequence's delta nets, in the order of the sequence's exported image
// (sequence_image.cc).
std::vector<float> states_of(Machine& machine, SequenceId sequence) {
  constexpr std::size_t kIntegersBefore = 10;
  const std::vector<std::byte> image = machine.cache().export_sequence(sequence).value();
  std::vector<float> states(machine.cache().plan().geometry.recurrent_values);
  std::memcpy(states.data(), image.data() + kIntegersBefore * sizeof(std::int32_t),
              states.size() * sizeof(float));
  return states;
}

TEST(DeviceHybridModels, GiveTheLogitsAndTheStatesOfTheCpu) {
  for (const Place& place : kPlaces) {
    const auto device = device_at(place);
    if (device == nullptr) continue;
    for (const auto& [name, variant] : hybrid_variants()) {
      const TinyFile file(std::string(name) + "_device.gguf");
      TinyModelWriter(with_whole_blocks(variant)).write(file.path());
      Machine on_host(file.path(), "bf16", nullptr), on_device(file.path(), "bf16", device);
      const auto tokens = some_tokens(150, 10);
      const SequenceId expected = on_host.cache().add(), sequence = on_device.cache().add();
      const auto differences = row_differences(on_host.run(expected, tokens, true, 150),
                                               on_device.run(sequence, tokens, true, 150), on_host.n_vocab());
      ASSERT_EQ(differences.size(), 150U);
      // On a device, a token with two equally good experts may use another one of the two than on the CPU.
      const int n_tied = variant.n_experts > 0 ? 8 : 0;
      EXPECT_LT(differences[149 - n_tied], 0.025) << name << " on " << place.name;
      EXPECT_LT(differences[75], 0.01) << name << " on " << place.name;
      // All values before the first attention are F32, so these states must agree closely. Attention's
      // queries are BF16 on a device.
      std::vector<float> states = states_of(on_host, expected), found = states_of(on_device, sequence);
      const Geometry& g = on_host.cache().plan().geometry;
      const std::size_t n_first =
          g.recurrent_values / g.n_recurrent_layers * (std::max(variant.full_attention_interval, 1) - 1);
      states.resize(n_first);
      found.resize(n_first);
      EXPECT_LT(relative_difference(states, found), 1e-4) << name << " on " << place.name;
    }
  }
}

TEST(DeviceHybridMemory, RunsOutWithAnError) {
  const TinyFile file("small_hybrid.gguf");
  TinyModelWriter(tiny_hybrid()).write(file.path());
  const auto device = std::make_shared<testing::HostDevice>();
  const auto engine = Engine::load(file.path(), {.n_threads = 1, .device = device}).value();
  const auto backend = make_device_backend(device->pages());
  const auto plan = resolve(parse_recipe("bf16").value(), engine->geometry(), nullptr).value();
  Cache cache(backend->place(plan).value(), engine->geometry().recurrent_bytes() - 1);
  const SequenceId sequence = cache.add();
  const auto tokens = some_tokens(4, 1);
  const EngineInput input{sequence, tokens, /*is_prompt=*/true, 4};
  const Status status = engine->step(cache, *backend, {&input, 1}, {nullptr, 0, engine->n_vocab()});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("out of memory"), std::string::npos) << status.error().message;
  EXPECT_EQ(cache.length(sequence), 0);
}

// CUDA's kernel for the convolution requires a multiple of 128 channels.
TEST(DeviceHybrids, ConvolutionsWithoutAKernelAreRefusedWhenTheModelIsLoaded) {
  const auto device = device_at(kPlaces[1]);
  if (device == nullptr) GTEST_SKIP() << "no such device";
  const auto file = write_tiny_model(tiny_hybrid());
  const auto engine = Engine::load(file->path(), {.n_threads = 1, .device = device});
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().message.find("convolutions"), std::string::npos) << engine.error().message;
}

}  // namespace
}  // namespace kvant
