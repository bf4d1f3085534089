// Compares the kernels of the CPU library with its attention in double precision: for every pair of formats,
// for head sizes and groups, and for all that a layer may ask for.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/float16.h"
#include "cache/page_counts.h"
#include "device/cpu/kernels/byte_kernels.h"
#include "device/cpu/rows.h"
#include "format/error_metric.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {
namespace {

std::vector<float> normal(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> drawn;
  std::vector<float> values(n);
  for (float& x : values) x = drawn(random);
  return values;
}

std::vector<std::uint16_t> halves(const std::vector<float>& values) {
  std::vector<std::uint16_t> to(values.size());
  f16_row_from_float(values.data(), to.data(), static_cast<int>(values.size()));
  return to;
}

// GuardedBytes is memory that ends where the process may not read on, so a read behind the last page fails.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t n) {
    const std::size_t unit = sysconf(_SC_PAGESIZE), used = (n + unit - 1) / unit * unit;
    size_ = used + unit;
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED || mprotect(memory_ + used, unit, PROT_NONE) != 0) throw std::bad_alloc();
    begin_ = memory_ + used - n;
  }
  ~GuardedBytes() { munmap(memory_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* get() const { return begin_; }

 private:
  std::size_t size_;
  std::byte *memory_, *begin_;
};

// Pages has a pool and a table of its own, [seq][head][side][page].
struct Pages {
  Pages(int n_seqs, int n_heads, int n_pages, std::size_t bytes)
      : stride((bytes + 15) / 16 * 16), pool(std::size_t{2} * n_seqs * n_heads * n_pages * stride) {
    view.seq_stride = std::int64_t{2} * n_heads * n_pages;
    view.head_stride = std::int64_t{2} * n_pages;
    view.side_stride = n_pages;
    for (int i = 0; i < 2 * n_seqs * n_heads * n_pages; ++i) table.push_back(i);
    std::shuffle(table.begin(), table.end(), std::mt19937(5));
    view.table = table.data();
    view.pool = pool.get();
    view.page_stride = static_cast<std::int64_t>(stride);
  }
  std::size_t stride;
  GuardedBytes pool;
  std::vector<std::int32_t> table;
  kvant_pages view{};
};

struct Sizes {
  int d = 64, group = 3, n_kv_heads = 2, n_seqs = 2, n_sealed = 2, n_tail = 21, n_protected = 0,
      n_queries = 1;
};

// Returns random codebooks for one side of all heads, as large as what they stand for.
std::vector<std::uint16_t> codebooks_of(const std::string& format, int d, int n_heads) {
  const Format& known = *find_format(format);
  const auto shape = known.codebook_shape();
  if (!shape) return {};
  std::vector<float> centroids = normal(n_heads * known.constant_size(d), 77);
  for (float& x : centroids) x *= shape->unit_vectors ? 1 / std::sqrt(static_cast<float>(d)) : 1;
  return halves(centroids);
}

// TestLayer has random keys, values and queries. Its outputs are F32.
struct TestLayer {
  explicit TestLayer(const Sizes& of, const std::string& key, const std::string& value)
      : sizes(of),
        key_format(key),
        value_format(value),
        sealed(of.n_seqs, of.n_kv_heads, std::max(of.n_sealed, 1),
               std::max(kvant_page_bytes(key.c_str(), of.d), kvant_page_bytes(value.c_str(), of.d))),
        tail(of.n_seqs, of.n_kv_heads, std::max(pages_for(of.n_tail), 1),
             std::size_t{2} * kPageTokens * of.d),
        kept(of.n_seqs, of.n_kv_heads, std::max(pages_for(of.n_protected), 1),
             std::size_t{2} * kPageTokens * of.d),
        key_codebooks(codebooks_of(key, of.d, of.n_kv_heads)),
        value_codebooks(codebooks_of(value, of.d, of.n_kv_heads)),
        n_sealed(of.n_seqs, of.n_sealed),
        n_tail(of.n_seqs, of.n_tail),
        n_protected(of.n_seqs, of.n_protected) {
    shape.struct_size = sizeof shape;
    shape.n_seqs = of.n_seqs;
    shape.n_kv_heads = of.n_kv_heads;
    shape.group = of.group;
    shape.head_dim = of.d;
    shape.softmax_scale = 1.5F / std::sqrt(static_cast<float>(of.d));
    shape.key_format = key_format.c_str();
    shape.value_format = value_format.c_str();
    shape.max_queries = of.n_queries;
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = n_sealed.data();
    lengths.tail_tokens = n_tail.data();
    lengths.protected_tokens = n_protected.data();
    lengths.protected_seq_stride = 1;
    layer.struct_size = sizeof layer;
    layer.sealed = sealed.view;
    layer.tail = tail.view;
    layer.protected_pages = kept.view;
    layer.key_codebooks = key_codebooks.empty() ? nullptr : key_codebooks.data();
    layer.value_codebooks = value_codebooks.empty() ? nullptr : value_codebooks.data();
    layer.key_codebook_stride = static_cast<std::int64_t>(key_codebooks.size()) / of.n_kv_heads;
    layer.value_codebook_stride = static_cast<std::int64_t>(value_codebooks.size()) / of.n_kv_heads;
    const int n_heads = of.n_kv_heads * of.group;
    q = normal(std::size_t{1} * of.n_seqs * of.n_queries * n_heads * of.d, 1);
    layer.q = q.data();
    layer.q_type = layer.out_type = KVANT_F32;
    layer.q_head_stride = layer.out_head_stride = of.d;
    layer.q_seq_stride = layer.out_seq_stride = std::int64_t{n_heads} * of.d;
    fill_plain(tail.view, of.n_tail, 11);
    fill_plain(kept.view, of.n_protected, 12);
  }

  void fill_plain(const kvant_pages& pages, int n_tokens, std::uint32_t seed) const {
    for (int seq = 0; seq < sizes.n_seqs; ++seq)
      for (int i = 0; i < 2 * sizes.n_kv_heads; ++i)
        for (int t = 0; t < n_tokens; ++t)
          write_row(normal(sizes.d, seed + 1000 * t + 10 * i + seq).data(), sizes.d, t % kPageTokens,
                    page_address(pages, seq, 0, i / 2, i % 2, t / kPageTokens));
  }

  // Encodes pages as kvant_seal does, also in formats that kvant_seal refuses.
  void fill_sealed(const std::function<TokenMask(int page)>& left_out = [](int) {
    return TokenMask{};
  }) const {
    for (int i = 0; i < 2 * sizes.n_kv_heads; ++i) {
      const SideContext side(shape, layer, i / 2, i % 2);
      for (int seq = 0; seq < sizes.n_seqs; ++seq)
        for (int page = 0; page < sizes.n_sealed; ++page)
          side.format().encode(normal(std::size_t{kPageTokens} * sizes.d, 100 * page + 10 * i + seq).data(),
                               left_out(page), side.context(),
                               sealed_address(layer, seq, i / 2, i % 2, page));
    }
  }

  struct Result {
    std::vector<float> out, lse;
  };
  Result attend(const char* kernels) {
    Result result{std::vector<float>(q.size(), -7.0F), std::vector<float>(q.size() / sizes.d, -7.0F)};
    shape.kernels = kernels;
    layer.out = result.out.data();
    layer.lse = result.lse.data();
    EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &layer, nullptr, 0, nullptr), KVANT_OK)
        << kvant_last_error();
    return result;
  }

  Sizes sizes;
  std::string key_format, value_format;
  Pages sealed, tail, kept;
  std::vector<std::uint16_t> key_codebooks, value_codebooks;
  std::vector<std::int32_t> n_sealed, n_tail, n_protected;
  std::vector<float> q;
  kvant_decode_shape shape{};
  kvant_decode_lengths lengths{};
  kvant_decode_layer layer{};
};

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += (double{found[i]} - expected[i]) * (double{found[i]} - expected[i]);
    size += double{expected[i]} * expected[i];
  }
  return std::sqrt(error / size);
}

// Kernels round levels and centroids to bytes, which costs accuracy (cpu_backend_test.cc). With other formats
// they round only q and P, to 16 bits.
double tolerance(const std::string& format) {
  if (format.starts_with("vq") || format.starts_with("nvq") || format.starts_with("pq")) return 0.035;
  return format.starts_with("lm") || format.starts_with("gtq") ? 0.015 : 1e-3;
}

void expect_like_reference(TestLayer& layer, const char* kernels, double most) {
  const TestLayer::Result expected = layer.attend("reference"), found = layer.attend(kernels);
  const std::string name = fmt::format("{}+{}, d = {}, G = {}, {} sealed, {} in the tail, {} queries",
                                       layer.key_format, layer.value_format, layer.sizes.d, layer.sizes.group,
                                       layer.sizes.n_sealed, layer.sizes.n_tail, layer.sizes.n_queries);
  EXPECT_LT(relative_error(found.out, expected.out), most) << name;
  for (std::size_t i = 0; i < found.lse.size(); ++i) {
    if (found.lse[i] == expected.lse[i]) continue;  // infinities, too
    ASSERT_NEAR(found.lse[i], expected.lse[i], most) << name;
  }
}

// Returns the formats that the library reads at a head size. Codebooks that take long to search are left out.
std::vector<std::string> read_formats(int d) {
  std::vector<std::string> names;
  for (const std::string& name : format_names()) {
    if (kvant_page_bytes(name.c_str(), d) > 0 && find_format(name)->constant_size(d) < 40'000)
      names.push_back(name);
  }
  return names;
}

class CpuKernels : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (kvant::cpu::find_kernels(GetParam()) == nullptr)
      GTEST_SKIP() << "this processor (or this build) has no " << GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Avx512, CpuKernels, ::testing::Values("avx512"));
INSTANTIATE_TEST_SUITE_P(AvxVnni, CpuKernels, ::testing::Values("avxvnni"));
INSTANTIATE_TEST_SUITE_P(Avx2, CpuKernels, ::testing::Values("avx2"));
INSTANTIATE_TEST_SUITE_P(Portable, CpuKernels, ::testing::Values("portable"));

// Each format is encoded once for each side, and each pair attends.
TEST_P(CpuKernels, AttendToEveryPairOfFormats) {
  const Sizes sizes{.d = 64, .group = 2, .n_kv_heads = 1, .n_seqs = 1, .n_sealed = 1, .n_tail = 5};
  const std::vector<std::string> formats = read_formats(sizes.d);
  ASSERT_GT(formats.size(), 60U);
  std::map<std::string, std::unique_ptr<TestLayer>> encoded;
  for (const std::string& format : formats) {
    encoded[format] = std::make_unique<TestLayer>(sizes, format, format);
    encoded[format]->fill_sealed();
  }
  for (const std::string& key : formats) {
    for (const std::string& value : formats) {
      TestLayer pair(sizes, key, value);
      for (int side = 0; side < 2; ++side) {
        const TestLayer& from = *encoded[side == KVANT_KEY ? key : value];
        std::memcpy(sealed_address(pair.layer, 0, 0, side, 0), sealed_address(from.layer, 0, 0, side, 0),
                    kvant_page_bytes((side == KVANT_KEY ? key : value).c_str(), sizes.d));
      }
      expect_like_reference(pair, GetParam(), std::max(tolerance(key), tolerance(value)));
    }
  }
}

TEST_P(CpuKernels, AttendWithEveryHeadSize) {
  for (const int d : {64, 80, 96, 112, 128, 192, 256, 512}) {
    for (const char* format :
         {"bf16", "fp8", "tok4g32s", "ch4g128", "ch3g64", "prog4", "lm3", "tcq4", "vq-d4b8"}) {
      if (kvant_page_bytes(format, d) == 0) continue;
      TestLayer layer({.d = d, .n_kv_heads = 1, .n_seqs = 1}, format, format);
      layer.fill_sealed();
      expect_like_reference(layer, GetParam(), tolerance(format));
    }
  }
}

TEST_P(CpuKernels, AttendWithEveryGroupAndLength) {
  for (const int group : {1, 2, 4, 5, 7, 16}) {
    for (const auto& [n_sealed, n_tail] : {std::pair{0, 1}, {0, 130}, {3, 0}, {9, 127}}) {
      TestLayer layer({.group = group, .n_sealed = n_sealed, .n_tail = n_tail}, "ch4g128", "tok4g128");
      layer.fill_sealed();
      expect_like_reference(layer, GetParam(), 1e-3);
    }
  }
}

TEST_P(CpuKernels, AttendWithAllThatScoresObey) {
  const std::vector<float> sinks = normal(6, 31);
  const std::vector<std::pair<const char*, std::function<void(TestLayer&)>>> asked = {
      {"a cap", [](TestLayer& t) { t.shape.score_softcap = 3; }},
      {"sink logits", [&](TestLayer& t) { t.layer.sink_logits = sinks.data(); }},
      {"a rotation back", [](TestLayer& t) { t.layer.out_hadamard = 1; }},
      {"fewer channels", [](TestLayer& t) { t.layer.q_channels = 48, t.layer.out_channels = 64; }},
  };
  for (const auto& [name, ask] : asked) {
    SCOPED_TRACE(name);
    TestLayer layer({}, "tcq3", "tok4g64");
    layer.fill_sealed();
    ask(layer);
    expect_like_reference(layer, GetParam(), 1e-3);
  }
}

// The reference takes the exponential itself, and drops what is 6 below the largest score of all: weights of
// e^-6 at most.
TEST_P(CpuKernels, AttendWithSas) {
  TestLayer layer({}, "prog4", "prog4");
  layer.fill_sealed();
  layer.shape.sas = 1;
  expect_like_reference(layer, GetParam(), 0.01);
}

TEST_P(CpuKernels, LeaveOutMaskedAndHiddenTokens) {
  const Sizes sizes{.n_protected = 9};
  TestLayer layer(sizes, "ch4g128", "tok4g128");
  std::vector<std::uint32_t> masks(std::size_t{4} * sizes.n_seqs * sizes.n_kv_heads * sizes.n_sealed);
  std::mt19937 random(3);
  for (std::uint32_t& word : masks) word = random() & random();
  layer.fill_sealed();
  layer.layer.sink = 4;
  layer.layer.masks = masks.data();
  layer.layer.mask_seq_stride = sizes.n_kv_heads * sizes.n_sealed;
  layer.layer.mask_head_stride = sizes.n_sealed;
  expect_like_reference(layer, GetParam(), 1e-3);
  const std::vector<std::int32_t> first_tokens = {0, 77};
  layer.lengths.first_tokens = first_tokens.data();
  expect_like_reference(layer, GetParam(), 1e-3);
}

TEST_P(CpuKernels, AttendWithSeveralQueries) {
  for (const int n_tail : {3, 5, 200}) {  // fewer tokens than queries, too
    for (const int hidden : {0, 50, 131}) {
      TestLayer layer({.n_sealed = n_tail == 3 && hidden == 0 ? 0 : 2, .n_tail = n_tail, .n_queries = 5},
                      "ch4g128", "tok4g128");
      layer.fill_sealed();
      const std::vector<std::int32_t> first_tokens(layer.sizes.n_seqs, hidden), begins = {0, 2, 7};
      layer.lengths.first_tokens = first_tokens.data();
      expect_like_reference(layer, GetParam(), 1e-3);
      layer.lengths.query_begins = begins.data();
      expect_like_reference(layer, GetParam(), 1e-3);
    }
  }
}

TEST_P(CpuKernels, AppendTheRowsOfAStep) {
  for (const int hadamard : {0, 1}) {
    TestLayer layer({}, "ch4g128", "tok4g128");
    layer.fill_sealed();
    const std::size_t n = std::size_t{2} * 2 * 64;
    const std::vector<float> keys = normal(n, 41), values = normal(n, 42), factors = normal(2 * 64, 43);
    kvant_new_rows rows{};
    rows.struct_size = sizeof rows;
    rows.n_rows = 2;
    rows.type = KVANT_F32;
    rows.keys = keys.data();
    rows.values = values.data();
    rows.key_row_stride = rows.value_row_stride = 128;
    rows.key_head_stride = rows.value_head_stride = 64;
    rows.key_factors = factors.data();
    rows.key_hadamard = rows.value_hadamard = hadamard;
    rows.queries = layer.q.data();
    rows.query_factors = factors.data();
    layer.layer.new_rows = &rows;
    expect_like_reference(layer, GetParam(), 1e-3);
    std::vector<float> stored(64), appended(64);
    read_row(page_address(layer.layer.tail, 1, 0, 1, KVANT_VALUE, 0), 64, layer.sizes.n_tail - 1,
             stored.data());
    appended.assign(values.begin() + 128 + 64, values.end());
    if (hadamard != 0) rotate_row(appended.data(), 64);
    EXPECT_LT(relative_error(stored, appended), 1.0 / 256);
  }
}

TEST_P(CpuKernels, CorrectWhatPagesLose) {
  for (const int absolute : {0, 1}) {
    TestLayer layer({}, "ch2g128", "tok2g128");
    layer.fill_sealed();
    std::vector<float> maps = normal(std::size_t{6} * 2 * 64 * 128, 51),
                       states = normal(std::size_t{4} * 256 * 65, 52);
    for (float& x : maps) x *= 0.2F;
    for (float& x : states) x = std::abs(x) * 0.1F;
    kvant_correction correction{};
    correction.struct_size = sizeof correction;
    correction.query_maps = maps.data();
    correction.states = states.data();
    correction.state_head_stride = 256 * 65;
    correction.state_seq_stride = 2 * 256 * 65;
    correction.absolute = absolute;
    layer.layer.correction = &correction;
    layer.shape.corrected = 1;
    expect_like_reference(layer, GetParam(), 1e-3);
  }
}

// The keys of page 0 are far from the query, those of page 1 near: nothing of page 0 counts.
TEST_P(CpuKernels, LeaveValuesUnreadThatCountLittle) {
  TestLayer layer({.d = 128, .group = 1, .n_kv_heads = 1, .n_seqs = 1, .n_tail = 0}, "ch8g128", "tok8g128");
  const SideContext keys(layer.shape, layer.layer, 0, KVANT_KEY),
      values(layer.shape, layer.layer, 0, KVANT_VALUE);
  for (int page = 0; page < 2; ++page) {
    std::vector<float> rows = normal(std::size_t{kPageTokens} * 128, 61);
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] = 0.1F * rows[i] + (page == 0 ? -1.0F : 1.0F) * layer.q[i % 128];
    keys.format().encode(rows.data(), {}, keys.context(), sealed_address(layer.layer, 0, 0, KVANT_KEY, page));
    values.format().encode(normal(rows.size(), 62 + page).data(), {}, values.context(),
                           sealed_address(layer.layer, 0, 0, KVANT_VALUE, page));
  }
  std::uint64_t counts[2] = {};
  layer.layer.skip_counts = counts;
  layer.shape.skip_threshold = 1e-4F;
  expect_like_reference(layer, GetParam(), 1e-3);
  EXPECT_EQ(counts[0], 2U);
  EXPECT_EQ(counts[1], 1U);
  EXPECT_STREQ(kvant_decode_kernel(&layer.shape),
               fmt::format("cpu/{}/ch8g128+tok8g128 skipping values", GetParam()).c_str());
}

TEST(CpuLibrary, GivesTheSameBitsToCallersAtTheSameTimeAndToAForkedProcess) {
  TestLayer layer({.d = 128, .group = 4, .n_kv_heads = 4, .n_sealed = 20}, "ch4g128", "tok4g128");
  layer.fill_sealed();
  const TestLayer::Result alone = layer.attend(nullptr);
  std::vector<TestLayer::Result> found(4, {std::vector<float>(alone.out.size()), {}});
  const auto attend_into = [&](TestLayer::Result& to) {
    kvant_decode_layer own = layer.layer;
    own.out = to.out.data();
    own.lse = nullptr;
    return kvant_decode_attention(&layer.shape, &layer.lengths, &own, nullptr, 0, nullptr) == KVANT_OK;
  };
  std::vector<std::thread> callers;
  for (TestLayer::Result& to : found)
    callers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) ASSERT_TRUE(attend_into(to));
    });
  for (std::thread& caller : callers) caller.join();
  for (const TestLayer::Result& one : found) EXPECT_EQ(one.out, alone.out);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(attend_into(found[0]) && found[0].out == alone.out ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(CpuLibrary, NamesTheKernelsOfAShape) {
  TestLayer layer({}, "ch4g128", "tok4g128");
  layer.shape.kernels = "reference";
  EXPECT_STREQ(kvant_decode_kernel(&layer.shape), "cpu/reference");
  layer.shape.kernels = nullptr;
  const std::string best = kvant::cpu::best_kernels()->name;
  EXPECT_EQ(kvant_decode_kernel(&layer.shape), "cpu/" + best + "/ch4g128+tok4g128");
  layer.shape.kernels = "sse2";
  EXPECT_EQ(kvant_decode_kernel(&layer.shape), nullptr);
  EXPECT_NE(std::string(kvant_last_error()).find("shape.kernels"), std::string::npos);
}

}  // namespace
}  // namespace kvant::device::cpu
