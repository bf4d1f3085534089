// Tests protection by scores on a device (VQuant, section 5). The device must protect the same tokens as a
// cache in host memory. The tests cover prompts and decode, batches and forks, cuts, and sessions that move.
#include <gtest/gtest.h>

#include <set>

#include "cache/head_state.h"
#include "model/device_machine.h"

namespace kvant {
namespace {

using testing::HostAndDevice;
using testing::kPlaces;
using testing::Machine;
using testing::Place;
using testing::relative_difference;
using testing::some_tokens;

constexpr const char* kRecipe = "k=ch4g128,v=tok2g128,window=128,sink=4,protect=0.1";

// Chosen holds the head and the token of each protected row.
using Chosen = std::set<std::pair<int, int>>;

Chosen chosen_by(const Cache& cache, SequenceId sequence) {
  Chosen chosen;
  const Geometry& g = cache.plan().geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.n_kv_heads; ++h) {
      for (const int token : cache.pages(sequence).protected_tokens(layer, h))
        chosen.emplace(g.head_index(layer, h), token);
    }
  }
  return chosen;
}

// Returns the share of tokens that only one of the two sets has.
double apart(const Chosen& a, const Chosen& b) {
  if (a.empty() && b.empty()) return 0;
  std::vector<std::pair<int, int>> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return 1 - 2.0 * static_cast<double>(both.size()) / static_cast<double>(a.size() + b.size());
}

class DeviceProtectionTest : public ::testing::TestWithParam<Place>, protected HostAndDevice {
 protected:
  DeviceProtectionTest() : HostAndDevice("protection_device.gguf") {}
  void SetUp() override {
    if (!load(GetParam(), TinyModel{}, kRecipe)) GTEST_SKIP() << "no such device";
  }
  // Queries and rows are BF16 on a device, so tokens with nearly equal scores may swap.
  static constexpr double kApart = 0.05;
};

TEST_P(DeviceProtectionTest, ChoosesTheTokensOfTheCpuWhateverTheCut) {
  const auto tokens = some_tokens(900, 1);
  const SequenceId expected = host_->cache().add();
  const std::vector<float> logits = host_->read_and_decode(expected, tokens, 600, 600, 100);
  const Chosen chosen = chosen_by(host_->cache(), expected);
  EXPECT_GT(chosen.size(), 100U);
  for (const int chunk : {600, 128, 77}) {
    const SequenceId sequence = device_->cache().add();
    const std::vector<float> found =
        device_->read_and_decode(sequence, tokens, 600, chunk, chunk == 77 ? 1 : chunk);
    EXPECT_LT(apart(chosen, chosen_by(device_->cache(), sequence)), kApart) << chunk;
    EXPECT_LT(relative_difference(logits, found), 0.05) << chunk;
    device_->cache().free(sequence);
  }
  EXPECT_EQ(device_->cache().page_bytes_in_use(), 0);
}

// The three sequences end their pages at different steps.
TEST_P(DeviceProtectionTest, SequencesOfOneStepAreEachAsAlone) {
  const auto a = some_tokens(540, 2), b = some_tokens(470, 3), c = some_tokens(530, 4);
  Cache& cache = device_->cache();
  std::vector<SequenceId> alone, together;
  std::vector<float> expected;
  for (const auto* tokens : {&a, &b, &c}) {
    alone.push_back(cache.add());
    together.push_back(cache.add());
    device_->run(alone.back(), std::span(*tokens).first(tokens->size() - 40), true, 512);
    device_->run(alone.back(), std::span(*tokens).last(40), false, 40);
  }
  const auto head = [](const auto& tokens) { return std::span(tokens).first(tokens.size() - 40); };
  device_->step({{together[0], head(a), true}, {together[1], head(b), true}, {together[2], head(c), true}});
  for (int i = 40; i > 0; --i) {
    const auto one = [&](const auto& tokens) { return std::span(tokens).subspan(tokens.size() - i, 1); };
    device_->step({{together[0], one(a)}, {together[1], one(b)}, {together[2], one(c)}});
  }
  const auto more = some_tokens(2, 5);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_LT(apart(chosen_by(cache, alone[i]), chosen_by(cache, together[i])), kApart) << i;
    EXPECT_LT(relative_difference(device_->run(alone[i], more, false, 1),
                                  device_->run(together[i], more, false, 1)),
              GetParam().between_ways * 30)
        << i;
  }
}

// The forks diverge while they share the observers of an open page and a protected page that has room.
TEST_P(DeviceProtectionTest, ForksDontDisturbEachOther) {
  const auto tokens = some_tokens(900, 6);
  const auto first = std::span(tokens).first(480), rest = std::span(tokens).subspan(480);
  Cache& cache = device_->cache();
  const SequenceId whole = cache.add(), trunk = cache.add();
  for (const SequenceId s : {whole, trunk}) device_->run(s, first, true, 480);
  device_->run(whole, rest, false, 60);
  const std::int64_t before = cache.page_bytes_in_use();
  const SequenceId branch = cache.fork(trunk).value();
  EXPECT_EQ(cache.page_bytes_in_use(), before);
  device_->run(branch, some_tokens(300, 7), false, 60);
  device_->run(trunk, rest, false, 60);
  EXPECT_EQ(chosen_by(cache, whole), chosen_by(cache, trunk));
  const auto more = some_tokens(2, 5);
  EXPECT_EQ(device_->run(whole, more, false, 1), device_->run(trunk, more, false, 1));
  for (const SequenceId s : {whole, trunk, branch}) cache.free(s);
  EXPECT_EQ(cache.page_bytes_in_use(), 0);
}

TEST_P(DeviceProtectionTest, AnAbortLeavesScoresObserversAndRows) {
  const auto tokens = some_tokens(800, 8);
  Cache& cache = device_->cache();
  for (const int length : {470, 480, 512}) {
    const SequenceId sequence = cache.add();
    device_->run(sequence, std::span(tokens).first(length), true, length);
    const std::vector<std::byte> before = cache.export_sequence(sequence).value();
    for (const int n : {1, 40, 200}) cache.reserve({{sequence, n, true}}).value()->abort();
    EXPECT_TRUE(cache.export_sequence(sequence).value() == before) << length;
  }
}

TEST_P(DeviceProtectionTest, CutBackGoesOnAsTheCpuDoes) {
  const auto tokens = some_tokens(900, 9), other = some_tokens(300, 10);
  // The cuts lie at observers, at the end of a page, in sealed pages, and in the first page.
  for (const int length : {880, 850, 700, 512, 333, 60}) {
    const SequenceId expected = host_->cache().add(), sequence = device_->cache().add();
    for (const auto& [machine, id] : {std::pair{host_.get(), expected}, {device_.get(), sequence}}) {
      machine->run(id, tokens, true, 900);
      ASSERT_TRUE(machine->cache().truncate(id, length).ok()) << length;
    }
    EXPECT_LT(apart(chosen_by(host_->cache(), expected), chosen_by(device_->cache(), sequence)), kApart);
    EXPECT_LT(relative_difference(host_->run(expected, other, false, 100),
                                  device_->run(sequence, other, false, 100)),
              0.05)
        << length;
    EXPECT_LT(apart(chosen_by(host_->cache(), expected), chosen_by(device_->cache(), sequence)), 2 * kApart)
        << length;
    host_->cache().free(expected);
    device_->cache().free(sequence);
  }
}

// The open page has observers at some lengths and none at others.
TEST_P(DeviceProtectionTest, SessionsGoOnInTheOtherPlace) {
  const auto tokens = some_tokens(700, 11), other = some_tokens(400, 12);
  for (const int length : {700, 600, 512}) {
    for (Machine* from : {host_.get(), device_.get()}) {
      Machine* const to = from == host_.get() ? device_.get() : host_.get();
      const SequenceId written = from->cache().add();
      from->run(written, std::span(tokens).first(length), true, length);
      const std::vector<std::byte> image = from->cache().export_sequence(written).value();
      const auto read = to->cache().import_sequence(image);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(chosen_by(from->cache(), written), chosen_by(to->cache(), *read));
      EXPECT_EQ(to->cache().export_sequence(*read).value().size(), image.size());
      EXPECT_LT(relative_difference(from->run(written, other, false, 100), to->run(*read, other, false, 100)),
                0.05)
          << length;
      EXPECT_LT(apart(chosen_by(from->cache(), written), chosen_by(to->cache(), *read)), 2 * kApart);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, DeviceProtectionTest, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvant
