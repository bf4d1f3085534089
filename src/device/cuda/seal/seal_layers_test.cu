// Compares kvant_seal_layers with kvant_seal_pages for each of the layers.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/common/limits.h"
#include "device/cuda/test/decode_test_cache.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "device/cuda/test/packed_entry.h"
#include "format/error_metric.h"
#include "kvant/kvant.h"

namespace kvant::cuda::seal_layers_test {
namespace {

constexpr int kHeads = 3, kSeqs = 2, kLayers = 14, kPages = 2, kSink = 4;
// A layer has kPages tail pages for each sequence, KV head and side.
constexpr int kTailPages = kSeqs * kHeads * 2 * kPages;

enum class Given { none, fixed, turning };

// Returns tail pages [seq][head][side][page] of all layers. Some pages have outliers.
std::vector<std::uint16_t> tail_pages(int d) {
  const std::size_t size = static_cast<std::size_t>(kPageTokens) * d;
  std::vector<std::uint16_t> pages(kLayers * kTailPages * size);
  for (int i = 0; i < kLayers * kTailPages; ++i) {
    const auto side = static_cast<Side>(i / kPages % 2);
    const std::vector<float> values =
        page_values(side, d, static_cast<std::uint32_t>(i), i % 5 == 3 ? Values::outliers : Values::normal);
    for (int token = 0; token < kPageTokens; ++token)
      for (int channel = 0; channel < d; ++channel)
        pages[i * size + plain_index(static_cast<PageSide>(side), d, token, channel)] =
            bf16_from_float(values[token * d + channel]);
  }
  return pages;
}

std::vector<std::int32_t> numbers_to(int n) {
  std::vector<std::int32_t> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// DifferentLayers has layers whose heads have different formats, so pages have different sizes. A launch
// takes at most one format of each side, so the layers need many launches.
class DifferentLayers {
 public:
  DifferentLayers(int d, Given given)
      : d_(d),
        given_(given),
        tail_(tail_pages(d)),
        tail_table_(numbers_to(kTailPages)),
        sealed_table_(numbers_to(kSeqs * kPages)),
        sinks_(std::vector<std::byte>(kLayers * kSeqs * kHeads * 2 * plain_bytes())),
        directions_(random_directions()),
        turns_(turns_of_layers()),
        metrics_(fixed_metrics()),
        codebooks_("vq-d4b8", "vq-d4b8", d, kLayers * kHeads, 5),
        centroids_(codebooks_.packed[0]),
        tail_page_({1, 0}),
        sealed_page_({0, 1}),
        n_pages_({1, 1}) {
    for (int i = 0; i < kLayers; ++i) describe(i);
    pool_ = std::make_unique<DeviceArray<std::byte>>(std::vector<std::byte>(pool_bytes_));
    for (int i = 0; i < kLayers; ++i) layers_[i].sealed.pool = pool_->get() + begins_[i];
  }

  void seal_together(cudaStream_t stream) {
    std::vector<const kvant_decode_shape*> shapes;
    std::vector<const kvant_decode_layer*> layers;
    for (int i = 0; i < kLayers; ++i) {
      shapes.push_back(&shapes_[i]);
      layers.push_back(&layers_[i]);
    }
    const kvant_page_metrics metrics = page_metrics(0);
    const kvant_seal_range range = range_of(metrics);
    ASSERT_EQ(kvant_seal_layers(kLayers, shapes.data(), layers.data(), &range, stream), KVANT_OK)
        << kvant_last_error();
  }
  void seal_one_by_one() {
    for (int i = 0; i < kLayers; ++i) {
      const kvant_page_metrics metrics = page_metrics(i);
      const kvant_seal_range range = range_of(metrics);
      ASSERT_EQ(kvant_seal_pages(&shapes_[i], &layers_[i], &range, nullptr), KVANT_OK) << kvant_last_error();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    }
  }
  // The copies follow the launches of a call in the default stream.
  std::vector<std::byte> sealed() const { return pool_->read(); }
  std::vector<std::byte> sinks() const { return sinks_.read(); }

 private:
  std::int64_t plain_bytes() const { return std::int64_t{kPageTokens} * d_ * 2; }

  std::vector<float> random_directions() const {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> directions(std::size_t{kLayers} * kHeads * d_ * kMetricRank);
    for (float& x : directions) x = normal(random);
    return directions;
  }
  std::vector<float> turns_of_layers() const {
    std::vector<float> turns;
    for (int i = 0; i < kLayers * d_; ++i)
      turns.insert(turns.end(), {static_cast<float>(i % d_ ^ 1),
                                 (i % 2 == 0 ? 0.01F : -0.01F) * static_cast<float>(1 + i / d_)});
    return turns;
  }
  std::vector<FeedbackStep> fixed_metrics() const {
    const std::vector<float> directions = random_directions();
    std::vector<FeedbackStep> steps;
    const std::ptrdiff_t size = std::ptrdiff_t{d_} * kMetricRank;
    for (std::ptrdiff_t i = 0; i < kLayers * kHeads; ++i) {
      const ErrorMetric metric(
          std::vector<float>(directions.begin() + i * size, directions.begin() + (i + 1) * size));
      steps.insert(steps.end(), metric.steps().begin(), metric.steps().end());
    }
    return steps;
  }

  void describe(int i) {
    static constexpr const char* kFormats[] = {"tcq4", "tcq1", "ch4g128",  "tcq5", "tcq3", "vq-d4b8",
                                               "tcq2", "tcq6", "tok4g128", "tcq4", "lm3"};
    std::vector<std::size_t> page_bytes;
    for (int head = 0; head < kHeads; ++head) {
      for (int side = 0; side < 2; ++side) {
        const char* format = kFormats[(3 * i + head + 4 * side) % std::size(kFormats)];
        formats_[i][side][head] = format;
        page_bytes.push_back(kvant_page_bytes(format, d_));
      }
    }
    const PackedEntry entry(page_bytes);
    offsets_[i] = entry.offsets;
    begins_[i] = pool_bytes_;
    pool_bytes_ += kSeqs * kPages * entry.bytes;
    shapes_[i] = {sizeof(kvant_decode_shape),
                  kSeqs,
                  kHeads,
                  1,
                  d_,
                  1.0F,
                  nullptr,
                  nullptr,
                  0,
                  formats_[i][0],
                  formats_[i][1]};
    kvant_decode_layer& layer = layers_[i];
    layer = {};
    layer.struct_size = sizeof layer;
    layer.tail = {tail_table_.get(),
                  kHeads * 2 * kPages,
                  0,
                  2 * kPages,
                  kPages,
                  tail_.get() + i * kTailPages * plain_bytes() / 2,
                  plain_bytes(),
                  0,
                  0,
                  0};
    layer.sealed.table = sealed_table_.get();
    layer.sealed.seq_stride = kPages;
    layer.sealed.page_stride = entry.bytes;
    layer.sealed_offsets = offsets_[i].data();
    layer.protected_pages = {tail_table_.get(),
                             1,
                             0,
                             0,
                             0,
                             sinks_.get() + i * kSeqs * kHeads * 2 * plain_bytes(),
                             kHeads * 2 * plain_bytes(),
                             0,
                             2 * plain_bytes(),
                             plain_bytes()};
    layer.sink = kSink;
    layer.key_codebook_stride = layer.value_codebook_stride = codebooks_.size[0];
    layer.key_codebooks = layer.value_codebooks = centroids_.get() + i * kHeads * codebooks_.size[0];
    if (given_ == Given::fixed)
      layer.key_metrics = reinterpret_cast<const float*>(metrics_.get() + std::ptrdiff_t{i} * kHeads * d_);
  }

  // Returns the metrics of layer `first` and of the layers after it.
  kvant_page_metrics page_metrics(int first) const {
    kvant_page_metrics metrics{};
    metrics.struct_size = sizeof metrics;
    metrics.direction_layer_stride = std::int64_t{kHeads} * d_ * kMetricRank;
    metrics.turn_layer_stride = std::int64_t{2} * d_;
    metrics.directions = directions_.get() + first * metrics.direction_layer_stride;
    metrics.turns = turns_.get() + first * metrics.turn_layer_stride;
    return metrics;
  }
  kvant_seal_range range_of(const kvant_page_metrics& metrics) const {
    kvant_seal_range range{};
    range.struct_size = sizeof range;
    range.tail_page = tail_page_.get();
    range.sealed_page = sealed_page_.get();
    range.n_pages = n_pages_.get();
    range.max_pages = 1;
    range.keep_sink = 1;
    if (given_ == Given::turning) range.page_metrics = &metrics;
    return range;
  }

  int d_;
  Given given_;
  DeviceArray<std::uint16_t> tail_;
  DeviceArray<std::int32_t> tail_table_, sealed_table_;
  DeviceArray<std::byte> sinks_;
  DeviceArray<float> directions_, turns_;
  DeviceArray<FeedbackStep> metrics_;
  Codebooks codebooks_;
  DeviceArray<std::uint16_t> centroids_;
  DeviceArray<std::int32_t> tail_page_, sealed_page_, n_pages_;
  const char* formats_[kLayers][2][kHeads];
  std::vector<std::int64_t> offsets_[kLayers];
  std::int64_t begins_[kLayers], pool_bytes_ = 0;
  kvant_decode_shape shapes_[kLayers];
  kvant_decode_layer layers_[kLayers];
  std::unique_ptr<DeviceArray<std::byte>> pool_;
};

class SealingOfLayers : public ::testing::TestWithParam<std::tuple<Given, int>> {};

TEST_P(SealingOfLayers, GivesTheBytesOfOneAfterAnother) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto [given, d] = GetParam();
  DifferentLayers alone(d, given);
  const std::vector<std::byte> nothing = alone.sealed();
  alone.seal_one_by_one();
  const std::vector<std::byte> sealed = alone.sealed(), sinks = alone.sinks();
  EXPECT_NE(sealed, nothing);
  for (int repeat = 0; repeat < 3; ++repeat) {
    DifferentLayers together(d, given);
    together.seal_together(nullptr);
    EXPECT_EQ(together.sealed(), sealed);
    EXPECT_EQ(together.sinks(), sinks);
  }
}

TEST_P(SealingOfLayers, CanBeCaptured) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto [given, d] = GetParam();
  DifferentLayers directly(d, given), captured(d, given);
  directly.seal_together(nullptr);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replayed;
  check_cuda(cudaStreamCreate(&stream), "a stream");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  captured.seal_together(stream);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&replayed, graph, 0), "a graph");
  check_cuda(cudaGraphLaunch(replayed, stream), "a replay");
  check_cuda(cudaStreamSynchronize(stream), "a replay");
  EXPECT_EQ(captured.sealed(), directly.sealed());
  cudaGraphExecDestroy(replayed);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

INSTANTIATE_TEST_SUITE_P(Metrics, SealingOfLayers,
                         ::testing::Combine(::testing::Values(Given::none, Given::fixed, Given::turning),
                                            ::testing::ValuesIn(kHeadDims)),
                         [](const auto& info) {
                           const Given given = std::get<0>(info.param);
                           return (given == Given::none    ? "none_d"
                                   : given == Given::fixed ? "fixed_d"
                                                           : "turning_d") +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(SealingOfLayersApi, NamesTheArgumentThatIsWrong) {
  alignas(16) static std::int32_t some[64]{};
  kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1.0F, "ch4g128", "tok4g128"}, other = shape;
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.sealed = layer.tail = {some, 0, 0, 0, 0, some, 16, 0, 0, 0};
  kvant_decode_layer other_layer = layer;
  const kvant_decode_shape* const shapes[2] = {&shape, &other};
  const kvant_decode_layer* const layers[2] = {&layer, &other_layer};
  kvant_seal_range valid{};
  valid.struct_size = sizeof valid;
  valid.tail_page = valid.sealed_page = some;
  valid.max_pages = 1;
  const auto expect_refused = [&](const char* named, int n_layers, const kvant_seal_range& range,
                                  kvant_status status = KVANT_INVALID_ARGUMENT) {
    EXPECT_EQ(kvant_seal_layers(n_layers, shapes, layers, &range, nullptr), status) << named;
    EXPECT_NE(std::strstr(kvant_last_error(), named), nullptr) << kvant_last_error();
  };
  const auto with = [&](const auto& change) {
    kvant_seal_range range = valid;
    change(range);
    return range;
  };
  const std::int64_t offsets[2] = {};
  const kvant_new_rows rows{};
  expect_refused("n_layers must be at least 1", 0, valid);
  expect_refused("range: n_layers", 2, with([](auto& r) { r.n_layers = 2; }));
  expect_refused("layer_offsets", 2, with([&](auto& r) { r.layer_offsets = offsets; }));
  expect_refused("range.rows", 2, with([&](auto& r) { r.rows = &rows; }));
  expect_refused("range.max_pages", 2, with([](auto& r) { r.max_pages = 0; }));
  other.n_seqs = 2;
  expect_refused("n_seqs, n_kv_heads and head_dim must be equal", 2, valid);
  other.n_seqs = 1;
  other.key_format = "no such format";
  expect_refused("shape.key_format", 2, valid, KVANT_UNSUPPORTED);
  other.key_format = "ch4g128";
  other_layer.masks = reinterpret_cast<const std::uint32_t*>(some);
  expect_refused("masks and correction", 2, valid);
  other_layer.masks = nullptr;
  other_layer.tail.pool = nullptr;
  expect_refused("layer.tail", 2, valid);
  EXPECT_EQ(kvant_seal_layers(1, nullptr, layers, &valid, nullptr), KVANT_INVALID_ARGUMENT);
  EXPECT_STREQ(kvant_last_error(), "shapes or layers is null");
}

}  // namespace
}  // namespace kvant::cuda::seal_layers_test
