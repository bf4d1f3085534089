// Compares kvant_seal_layers with kvant_seal_pages for each of the layers.
#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/emulation.h"
#include "device/cpu/test_layer.h"

namespace kvant::device::cpu::seal_layers_test {
namespace {

constexpr int kHeadDim = 64;
constexpr int kSink = 4;

// SomeLayers has a layer for each format that can be sealed. A layer's keys have this format, and its values
// have the next format. The heads of a layer differ in their formats, unless a format has codebooks.
class SomeLayers {
 public:
  SomeLayers() {
    std::vector<std::string> formats;
    for (const std::string& name : read_formats(kHeadDim))
      if (kvant_can_seal(name.c_str()) != 0) formats.push_back(name);
    formats = kvant::testing::fewer(std::move(formats), 3);
    for (std::size_t i = 0; i < formats.size(); ++i) {
      const std::string &key = formats[i], &value = formats[(i + 1) % formats.size()];
      TestLayer& added = layers_.emplace_back(
          LayerSizes{.d = kHeadDim, .n_sealed = 3, .n_tail = 2 * kPageTokens, .n_protected = kSink}, key,
          value);
      added.layer.sink = kSink;
      names_.push_back({added.key_format.c_str(), added.value_format.c_str(), added.key_format.c_str()});
      if (added.key_codebooks.empty() && added.value_codebooks.empty()) {
        added.shape.head_key_formats = names_.back().data();
        added.shape.head_value_formats = names_.back().data() + 1;
      }
      shapes_.push_back(&added.shape);
      pointers_.push_back(&added.layer);
    }
  }

  int size() const { return static_cast<int>(shapes_.size()); }
  const kvant_decode_shape* const* shapes() const { return shapes_.data(); }
  const kvant_decode_layer* const* layers() const { return pointers_.data(); }
  kvant_decode_shape& shape(int i) { return const_cast<kvant_decode_shape&>(*shapes_[i]); }
  kvant_decode_layer& layer(int i) { return const_cast<kvant_decode_layer&>(*pointers_[i]); }

  // Returns the bytes of the sealed and the protected pages of a layer.
  std::vector<std::byte> written(int i) const {
    auto layer = std::next(layers_.begin(), i);
    std::vector<std::byte> bytes;
    for (const TestPages* pages : {&layer->sealed, &layer->kept})
      bytes.insert(bytes.end(), pages->pool.get(), pages->pool.get() + pages->table.size() * pages->stride);
    return bytes;
  }

 private:
  std::list<TestLayer> layers_;
  std::list<std::vector<const char*>> names_;
  std::vector<const kvant_decode_shape*> shapes_;
  std::vector<const kvant_decode_layer*> pointers_;
};

// Metrics are different for each layer.
struct SomeMetrics {
  explicit SomeMetrics(int n_layers)
      : directions(normal(std::size_t{1} * n_layers * kOfLayer, 3)),
        turns(std::size_t{2} * n_layers * kHeadDim) {
    for (int i = 0; i < n_layers * kHeadDim; ++i) {
      const int channel = i % kHeadDim, step = 1 + i / kHeadDim;
      turns[2 * i] = static_cast<float>(channel ^ 1);
      turns[2 * i + 1] = (channel % 2 == 0 ? 0.01F : -0.01F) * static_cast<float>(step);
    }
  }
  // Returns the metrics of layer `first` and of the layers after it.
  kvant_page_metrics from(int first) const {
    kvant_page_metrics metrics{};
    metrics.struct_size = sizeof metrics;
    metrics.directions = directions.data() + first * kOfLayer;
    metrics.turns = turns.data() + std::ptrdiff_t{2} * first * kHeadDim;
    metrics.direction_layer_stride = kOfLayer;
    metrics.turn_layer_stride = std::int64_t{2} * kHeadDim;
    return metrics;
  }

  static constexpr int kOfLayer = 2 * kHeadDim * kMetricRank;
  std::vector<float> directions, turns;
};

// The first sequence seals its first page, and the second sequence seals two later pages.
struct SomeRange {
  SomeRange() {
    range.struct_size = sizeof range;
    range.tail_page = tail_page;
    range.sealed_page = sealed_page;
    range.n_pages = n_pages;
    range.max_pages = 2;
    range.keep_sink = 1;
  }
  std::int32_t tail_page[2] = {1, 0}, sealed_page[2] = {0, 1}, n_pages[2] = {1, 2};
  kvant_seal_range range{};
};

TEST(SealLayers, GivesTheBytesOfLayersThatAreSealedOneByOne) {
  SomeLayers together, alone, before;
  const SomeMetrics metrics(together.size());
  SomeRange some;
  kvant_page_metrics of_layers = metrics.from(0);
  some.range.page_metrics = &of_layers;
  ASSERT_EQ(kvant_seal_layers(together.size(), together.shapes(), together.layers(), &some.range, nullptr),
            KVANT_OK)
      << kvant_last_error();
  for (int i = 0; i < alone.size(); ++i) {
    of_layers = metrics.from(i);
    ASSERT_EQ(kvant_seal_pages(&alone.shape(i), &alone.layer(i), &some.range, nullptr), KVANT_OK)
        << kvant_last_error();
    EXPECT_EQ(together.written(i), alone.written(i)) << together.shape(i).key_format;
    EXPECT_NE(together.written(i), before.written(i)) << together.shape(i).key_format;
  }
}

TEST(SealLayers, NamesTheArgumentThatIsWrong) {
  SomeLayers some;
  const SomeRange valid;
  const auto expect_refused = [&](const char* named, int n_layers, const kvant_seal_range& range) {
    EXPECT_EQ(kvant_seal_layers(n_layers, some.shapes(), some.layers(), &range, nullptr),
              KVANT_INVALID_ARGUMENT)
        << named;
    EXPECT_NE(std::strstr(kvant_last_error(), named), nullptr) << kvant_last_error();
  };
  const auto with = [&](const auto& change) {
    kvant_seal_range range = valid.range;
    change(range);
    return range;
  };
  const std::int64_t offsets[2] = {};
  const kvant_new_rows rows{};
  expect_refused("n_layers must be at least 1", 0, valid.range);
  expect_refused("range: n_layers", 2, with([](auto& r) { r.n_layers = 2; }));
  expect_refused("layer_offsets", 2, with([&](auto& r) { r.layer_offsets = offsets; }));
  expect_refused("range.rows", 2, with([&](auto& r) { r.rows = &rows; }));
  expect_refused("range.max_pages", 2, with([](auto& r) { r.max_pages = 0; }));
  some.shape(1).n_seqs = 1;
  expect_refused("n_seqs, n_kv_heads and head_dim must be equal", 2, valid.range);
  some.shape(1).n_seqs = 2;
  const std::uint32_t mask[4] = {};
  some.layer(1).masks = mask;
  expect_refused("masks and correction", 2, valid.range);
  some.layer(1).masks = nullptr;
  some.layer(1).tail.pool = nullptr;
  expect_refused("layer.tail", 2, valid.range);
  EXPECT_EQ(kvant_seal_layers(1, nullptr, some.layers(), &valid.range, nullptr), KVANT_INVALID_ARGUMENT);
  EXPECT_STREQ(kvant_last_error(), "shapes or layers is null");
}

}  // namespace
}  // namespace kvant::device::cpu::seal_layers_test
