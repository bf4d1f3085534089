// Tests models on a device in which only some layers have a sliding window. Layers with a window free pages
// beyond the window. The tests compare results with the CPU's results, and the number of pages with the
// number that the window needs.
#include <gtest/gtest.h>

#include <numeric>

#include "cache/page_counts.h"
#include "model/device_machine.h"

namespace kvant {
namespace {

using testing::HostAndDevice;
using testing::HostDevice;
using testing::kPlaces;
using testing::Machine;
using testing::Place;
using testing::relative_difference;
using testing::some_tokens;
using testing::with_recipe;

class DeviceWindows : public ::testing::TestWithParam<std::tuple<const char*, Place>>,
                      protected HostAndDevice {
 protected:
  DeviceWindows() : HostAndDevice("device_windows.gguf") {
    const Place place = with_recipe(std::get<1>(GetParam()), std::get<0>(GetParam()));
    same_ = place.between_ways;
    close_ = place.from_cpu;
  }
  void SetUp() override {
    if (!load(std::get<1>(GetParam()), tiny_windowed(), std::get<0>(GetParam())))
      GTEST_SKIP() << "no such device";
  }

  double same_, close_;  // Place explains the two values
};

TEST_P(DeviceWindows, GiveTheLogitsOfTheCpuWhateverTheCut) {
  expect_logits_of_the_cpu({600, 128, 77}, 30, close_, same_);
}

// A layer with a window must keep the pages that the next token can read, and pages that are not yet due for
// sealing.
TEST_P(DeviceWindows, HoldWhatIsSeen) {
  Cache& cache = device_->cache();
  const auto tokens = some_tokens(700, 14);
  const SequenceId sequence = cache.add();
  const int window = cache.plan().layers[0].window, sliding = cache.plan().layers[0].sliding_window;
  for (int length = 0; length < 700;) {
    const int n = length < 500 ? 100 : 20;
    device_->run(sequence, std::span(tokens).subspan(length, n), length < 500, n);
    length += n;
    std::vector<int> held[2];
    for (int group = 0; group < 2; ++group)
      cache.ledger(sequence, group).for_each_entry([&](int page, PageEntry) { held[group].push_back(page); });
    std::vector<int> expected, all;
    for (int page = 0; page * kPageTokens < length; ++page) {
      const int end = (page + 1) * kPageTokens;
      if (end - 1 > length - sliding || end + window > length) expected.push_back(page);
      all.push_back(page);
    }
    EXPECT_EQ(held[0], expected) << length;
    EXPECT_EQ(held[1], all) << length;
  }
  cache.free(sequence);
  EXPECT_EQ(cache.page_bytes_in_use(), 0);
}

// A prompt and decoded tokens share a step, and each must get the result that it gets alone.
TEST_P(DeviceWindows, SequencesOfOneStepAreEachAsAlone) {
  const auto a = some_tokens(520, 2), b = some_tokens(400, 3);
  Cache& cache = device_->cache();
  const SequenceId alone_a = cache.add(), alone_b = cache.add(), both_a = cache.add(), both_b = cache.add();
  for (const SequenceId id : {alone_a, both_a}) device_->run(id, std::span(a).first(500), true, 500);
  for (const SequenceId id : {alone_b, both_b}) device_->run(id, std::span(b).first(290), true, 290);
  for (int i = 0; i < 3; ++i) {
    const auto one = std::span(a).subspan(500 + i, 1);
    const auto chunk = i < 2 ? std::span(b).subspan(290 + 50 * i, 50) : std::span(b).subspan(390, 1);
    std::vector<float> expected = device_->step({{alone_b, chunk, /*is_prompt=*/i < 2}});
    const std::vector<float> of_a = device_->step({{alone_a, one}});
    expected.insert(expected.end(), of_a.begin(), of_a.end());
    EXPECT_LT(relative_difference(expected, device_->step({{both_b, chunk, i < 2}, {both_a, one}})), same_);
  }
}

TEST_P(DeviceWindows, ForksShareAndDontDisturbEachOther) {
  expect_forks_share(400, 540, 200, same_);  // the fork frees pages that the first sequence still holds
}

TEST_P(DeviceWindows, CutBackWhereTheCpuIsGoOnAsTheCpuDoes) {
  const auto tokens = some_tokens(530, 6), other = some_tokens(140, 7);
  int n_cut = 0;
  for (const int length : {525, 490, 470, 300, 0}) {
    const SequenceId expected = host_->cache().add(), sequence = device_->cache().add();
    host_->run(expected, tokens, true, 530);
    device_->run(sequence, tokens, true, 530);
    const bool cut = host_->cache().truncate(expected, length).ok();
    ASSERT_EQ(device_->cache().truncate(sequence, length).ok(), cut) << length;
    if (!cut) continue;
    ++n_cut;
    EXPECT_LT(
        relative_difference(host_->run(expected, other, false, 1), device_->run(sequence, other, false, 1)),
        close_)
        << length;
  }
  EXPECT_GE(n_cut, 2);
}

TEST_P(DeviceWindows, ASequenceOfTheCpuGoesOn) {
  expect_import_goes_on(520, 150, close_);
}

TEST_P(DeviceWindows, ASequenceOfTheDeviceGoesOnOnTheCpuAndOnTheDevice) {
  const auto tokens = some_tokens(520, 15), other = some_tokens(40, 16);
  Cache& cache = device_->cache();
  const SequenceId sequence = cache.add();
  device_->run(sequence, tokens, true, 520);
  const std::vector<std::byte> image = cache.export_sequence(sequence).value();
  const SequenceId on_host = host_->cache().import_sequence(image).value();
  EXPECT_TRUE(host_->cache().export_sequence(on_host).value() == image);
  const SequenceId again = cache.import_sequence(image).value();
  const std::vector<float> expected = device_->run(sequence, other, false, 1);
  EXPECT_TRUE(expected == device_->run(again, other, false, 1));
  EXPECT_LT(relative_difference(expected, host_->run(on_host, other, false, 1)), close_);
}

TEST_P(DeviceWindows, AbortLeavesTheSequenceAsItWas) {
  expect_abort_changes_nothing(same_);
}

TEST_P(DeviceWindows, FillForBenchmarks) {
  expect_fills_for_benchmarks(700);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, DeviceWindows,
    ::testing::Combine(::testing::Values("bf16", "bf16,prompt=flashq", "kvant-4bit", "kivi-4bit",
                                         "k=hadamard:ch4g128,v=tok4g128,sink=20,prefill=256",
                                         "k=ch4g128,v=tok4g128,sink=4,window=256", "kvlinc-2bit",
                                         "k=ch4g128,v=tok4g128,k@0.1=tok8g64,v@1.0=tok2g64,sink=4,"
                                         "window=128,protect=0.1",
                                         "k=ch4g128,v=tok4g128,sink=4,prompt=flashq"),
                       ::testing::ValuesIn(kPlaces)));

// Only the device in host memory is compared, because its library encodes exactly like the CPU. A page's
// position in the sequence changes the weights of its keys' errors.
INSTANTIATE_TEST_SUITE_P(ShapedErrors, DeviceWindows,
                         ::testing::Combine(::testing::Values("k=hadamard:tcq2,v=hadamard:tcq2,sink=4,"
                                                              "encode=shaped"),
                                            ::testing::Values(kPlaces[0])));

// SealedPlaces records, by layer, the position that the library is told for each page that it seals.
struct SealedPlaces {
  std::vector<std::int32_t> of_layer[3];
  int n_calls = 0;
};
SealedPlaces places;
kvant_status note_place(const kvant_decode_shape*, const kvant_decode_layer*, const kvant_seal_range* range,
                        kvant_stream) {
  const std::int32_t* first = range->page_metrics->first_pages;
  std::vector<std::int32_t>& of_layer = places.of_layer[places.n_calls++ % 3];
  for (int i = 0; i < range->n_pages[0]; ++i)
    of_layer.push_back((first == nullptr ? range->sealed_page : first)[0] + i);
  return KVANT_OK;
}

// The metrics of keys rotate with a page's position in its sequence, so the position must be right even if
// the page table begins later.
TEST(DeviceWindowTables, NameThePlaceOfAPageToTheMetricsOfItsKeys) {
  const TinyFile file("places_windows.gguf");
  TinyModelWriter(tiny_windowed()).write(file.path());
  const auto device = std::make_shared<HostDevice>();
  Machine machine(file.path(), "k=hadamard:tcq2,v=hadamard:tcq2,sink=4,encode=shaped", device);
  device->host_pages().functions().seal_pages = note_place;
  places = {};
  const auto tokens = some_tokens(900, 17);
  const SequenceId sequence = machine.cache().add();
  machine.run(sequence, tokens, true, 300);
  std::vector<std::int32_t> all(sealed_pages(900, machine.cache().plan().layers[0].window));
  std::iota(all.begin(), all.end(), 0);
  for (const std::vector<std::int32_t>& of_layer : places.of_layer) EXPECT_EQ(of_layer, all);
  EXPECT_GT(machine.cache().ledger(sequence, 0).first_page(), 2);
}

}  // namespace
}  // namespace kvant
