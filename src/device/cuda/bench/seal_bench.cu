// Times the sealing of one layer's prompt, and prints microseconds for each pair of formats. The time is the
// median over runs. All runs seal the same tail pages.
//
//   seal_bench [--head-dim D] [--kv-heads H] [--tokens N] [--runs N] [--shaped 1 or 2] [--layers N]
//   [KEY+VALUE ...]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/bench/bench_options.h"
#include "device/cuda/bench/median_time.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "format/error_metric.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

struct Settings {
  int head_dim = 128;
  int kv_heads = 8;
  int tokens = 32768;
  int runs = 7;
  // Selects the error that the trellis codes of keys minimize. 0 selects the mean squared error, 1 a metric
  // of the head, and 2 a metric that rotates from page to page.
  int shaped = 0;
  // If not 0, sealing one page in each of this many layers is timed too. The formats must have no codebooks.
  int layers = 0;
  std::vector<std::string> pairs;
};

// Multiplies rows of d numbers by the orthonormal Hadamard matrix.
void rotate(std::vector<float>& rows, int d) {
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  for (std::size_t row = 0; row < rows.size(); row += d) {
    for (int step = 1; step < d; step *= 2)
      for (int i = 0; i < d; ++i) {
        if ((i & step) != 0) continue;
        const float a = rows[row + i], b = rows[row + i + step];
        rows[row + i] = a + b;
        rows[row + i + step] = a - b;
      }
    for (int i = 0; i < d; ++i) rows[row + i] *= scale;
  }
}

// Returns tail pages of Gaussian values, [head][page][side]. Keys are rotated if `rotated` is true, and
// otherwise their channels differ in variance.
std::vector<std::uint16_t> tail_pages(int heads, int pages, int d, bool rotated) {
  constexpr int kUnique = 16;
  const std::size_t size = static_cast<std::size_t>(kPageTokens) * d;
  std::vector<std::uint16_t> unique[2];
  for (const Side side : kSides) {
    std::vector<std::uint16_t>& all = unique[static_cast<int>(side)];
    all.resize(kUnique * size);
    for (int i = 0; i < kUnique; ++i) {
      std::vector<float> values = page_values(side, d, i);
      if (rotated) rotate(values, d);
      const PageSide of = side == Side::key ? PageSide::key : PageSide::value;
      for (std::size_t j = 0; j < size; ++j)
        all[i * size + plain_index(of, d, static_cast<int>(j) / d, static_cast<int>(j) % d)] =
            bf16_from_float(values[j]);
    }
  }
  std::vector<std::uint16_t> bytes;
  bytes.reserve(2 * heads * pages * size);
  for (int i = 0; i < heads * pages; ++i)
    for (const auto& all : unique) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(i % kUnique * size);
      bytes.insert(bytes.end(), first, first + static_cast<std::ptrdiff_t>(size));
    }
  return bytes;
}

// Returns the strong directions of an error metric, [d][kMetricRank]. Each direction is half as strong as the
// previous direction.
std::vector<float> directions_of_head(int d) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> directions(static_cast<std::size_t>(d) * kMetricRank);
  for (std::size_t i = 0; i < directions.size(); ++i)
    directions[i] = 1.5F * std::exp2(-static_cast<float>(i % kMetricRank)) * normal(random);
  return directions;
}

// Returns error metrics as steps of feedback, [heads][d]. All heads have the same metric.
std::vector<FeedbackStep> metrics(int heads, int d) {
  const ErrorMetric metric(directions_of_head(d));
  std::vector<FeedbackStep> steps;
  for (int head = 0; head < heads; ++head)
    steps.insert(steps.end(), metric.steps().begin(), metric.steps().end());
  return steps;
}

void check(kvant_status status) {
  if (status == KVANT_OK) return;
  std::fprintf(stderr, "%s\n", kvant_status_text(status));
  std::exit(1);
}

// Times the sealing of one page in each layer, as at the end of a decode step. The page is sealed in one
// launch for all layers, in one launch a layer, and not at all. Each page of the bench's sequence stands for
// a layer's page.
void run_layers(const Settings& settings, const kvant_decode_shape& shape, kvant_decode_layer layer,
                kvant_seal_range range) {
  layer.tail.layer_stride = layer.sealed.layer_stride = 1;
  layer.key_codebooks = layer.value_codebooks = nullptr;
  const DeviceArray<std::int32_t> none(std::vector<std::int32_t>{-1});
  const auto times = [&] {
    range.n_layers = settings.layers;
    const double together = median_us(settings.runs, "sealing",
                                      [&] { check(kvant_seal_pages(&shape, &layer, &range, nullptr)); });
    range.n_layers = 1;
    const double alone = median_us(settings.runs, "sealing", [&] {
      for (layer.layer = 0; layer.layer < settings.layers; ++layer.layer)
        check(kvant_seal_pages(&shape, &layer, &range, nullptr));
    });
    layer.layer = 0;
    return std::pair(together, alone);
  };
  const auto [together, alone] = times();
  range.tail_page = none.get();
  const auto [nothing, nothing_alone] = times();
  std::printf(
      "  a page of each of %d layers %7.1f us in one launch, %7.1f us in one each; of none %.1f and %.1f "
      "us\n",
      settings.layers, together, alone, nothing, nothing_alone);
}

void run_pair(const Settings& settings, const std::string& pair, const kvant_pages& tail, int pages) {
  const int d = settings.head_dim;
  const std::string key = pair.substr(0, pair.find('+'));
  const std::string value = pair.substr(pair.find('+') + 1);
  if (kvant_page_bytes(key.c_str(), d) == 0 || kvant_page_bytes(value.c_str(), d) == 0) {
    std::fprintf(stderr, "seal_bench: '%s' is neither an option nor KEY+VALUE\n", pair.c_str());
    std::exit(2);
  }
  const Codebooks codebooks(key, value, d, settings.kv_heads, 3);
  const DeviceArray<std::uint16_t> key_codebooks(codebooks.packed[0]), value_codebooks(codebooks.packed[1]);
  const std::size_t key_bytes = kvant_page_bytes(key.c_str(), d);
  const std::size_t value_bytes = kvant_page_bytes(value.c_str(), d);
  const DeviceArray<std::byte> pool((key_bytes + value_bytes) * settings.kv_heads * pages);
  const DeviceArray<std::int32_t> first(std::vector<std::int32_t>{0});
  kvant_decode_shape shape{sizeof shape, 1, settings.kv_heads, 1, d, 1.0F, key.c_str(), value.c_str()};
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.tail = layer.sealed = tail;
  layer.sealed.pool = pool.get();
  layer.sealed.page_stride = static_cast<std::int64_t>(key_bytes + value_bytes);
  layer.sealed.side_offset = static_cast<std::int64_t>(key_bytes);
  layer.key_codebooks = key_codebooks.get();
  layer.value_codebooks = value_codebooks.get();
  layer.key_codebook_stride = codebooks.size[0];
  layer.value_codebook_stride = codebooks.size[1];
  const DeviceArray<FeedbackStep> of_keys(metrics(settings.kv_heads, d));
  if (settings.shaped == 1) layer.key_metrics = reinterpret_cast<const float*>(of_keys.get());
  std::vector<float> of_heads, basis(static_cast<std::size_t>(d) * d, 1 / std::sqrt(static_cast<float>(d)));
  for (int head = 0; head < settings.kv_heads; ++head) {
    const std::vector<float> of_head = directions_of_head(d);
    of_heads.insert(of_heads.end(), of_head.begin(), of_head.end());
  }
  std::vector<float> turns;
  for (int i = 0; i < d; ++i)
    turns.insert(turns.end(),
                 {static_cast<float>(i ^ 1), (i % 2 == 0 ? .1F : -.1F) / static_cast<float>(1 + i / 2)});
  const DeviceArray<float> directions(of_heads), frames(turns), bases(basis);
  const kvant_page_metrics page_metrics{sizeof page_metrics, directions.get(), frames.get(), bases.get(), 0};
  kvant_seal_range range{};
  range.struct_size = sizeof range;
  range.tail_page = range.sealed_page = first.get();
  range.max_pages = pages;
  range.page_metrics = settings.shaped == 2 ? &page_metrics : nullptr;
  const double us =
      median_us(settings.runs, "sealing", [&] { check(kvant_seal_pages(&shape, &layer, &range, nullptr)); });
  range.max_pages = 1;
  const double one =
      median_us(settings.runs, "sealing", [&] { check(kvant_seal_pages(&shape, &layer, &range, nullptr)); });
  std::printf("%-20s d%-3d %d heads: %dk tokens %9.1f us, a page of each %7.1f us\n", pair.c_str(), d,
              settings.kv_heads, settings.tokens / 1024, us, one);
  if (settings.layers > 0) run_layers(settings, shape, layer, range);
  std::fflush(stdout);
}

void run(const Settings& settings) {
  const int pages = settings.tokens / kPageTokens;
  const int d = settings.head_dim;
  // Recipes with trellis codes rotate keys, and a rotation changes how long the encoder searches.
  const DeviceArray<std::uint16_t> plain(tail_pages(settings.kv_heads, pages, d, false)),
      rotated(tail_pages(settings.kv_heads, pages, d, true));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(settings.kv_heads) * pages);
  std::iota(ids.begin(), ids.end(), 0);
  const DeviceArray<std::int32_t> table(ids);
  kvant_pages tail{};
  tail.table = table.get();
  tail.head_stride = pages;
  tail.side_offset = static_cast<std::int64_t>(kPageTokens) * d * 2;
  tail.page_stride = 2 * tail.side_offset;
  for (const std::string& pair : settings.pairs) {
    tail.pool = pair.starts_with("tcq") ? rotated.get() : plain.get();
    run_pair(settings, pair, tail, pages);
  }
}

Settings parse(int argc, char** argv) {
  Settings settings;
  settings.pairs = parse_bench(argc, argv,
                               {{"--head-dim", &settings.head_dim},
                                {"--kv-heads", &settings.kv_heads},
                                {"--tokens", &settings.tokens},
                                {"--runs", &settings.runs},
                                {"--shaped", &settings.shaped},
                                {"--layers", &settings.layers}})
                       .names;
  if (settings.pairs.empty())
    settings.pairs = {"ch4g128+tok4g128", "ch2g128+tok2g128", "prog4+prog4",       "prog2+prog2",
                      "lm2+lm2",          "lm3+lm3",          "lm4+lm4",           "vq-d2b8+vq-d2b8",
                      "vq-d4b8+vq-d4b8",  "vq-d8b8+vq-d8b8",  "vq-d4b12+vq-d4b12", "vq-d8b12+vq-d8b12",
                      "tcq1+tcq1",        "tcq2+tcq2",        "tcq3+tcq3",         "tcq4+tcq4",
                      "tcq5+tcq5",        "tcq6+tcq6"};
  return settings;
}

}  // namespace
}  // namespace kvant::cuda

int main(int argc, char** argv) {
  kvant::cuda::run(kvant::cuda::parse(argc, argv));
}
