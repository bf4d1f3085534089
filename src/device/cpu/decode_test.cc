// Compares the attention of the CPU library with attention in double precision. The tests cover every pair
// of formats, head sizes, groups, and everything that a layer may ask for.
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <thread>

#include "base/testing/emulation.h"
#include "device/cpu/test_layer.h"

namespace kvant::device::cpu {
namespace {

void expect_like_double(TestLayer& layer, const char* kernels, double most) {
  const TestLayer::Result expected = layer.attend_in_double(), found = layer.attend(kernels);
  const std::string name = fmt::format("{}+{}, d = {}, G = {}, {} sealed, {} in the tail, {} queries",
                                       layer.key_format, layer.value_format, layer.sizes.d, layer.sizes.group,
                                       layer.sizes.n_sealed, layer.sizes.n_tail, layer.sizes.n_queries);
  expect_close(found, expected, most, name);
}

class CpuKernels : public WithKernels {};
INSTANTIATE_TEST_SUITE_P(reference, CpuKernels, ::testing::Values("reference"));
#define KVANT_INSTRUCTION_SET(set) INSTANTIATE_TEST_SUITE_P(set, CpuKernels, ::testing::Values(#set));
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET

// Each format is encoded once for each side, and each pair attends. On an emulated processor, only every
// seventh pair attends.
TEST_P(CpuKernels, AttendToEveryPairOfFormats) {
  const LayerSizes sizes{.d = 64, .group = 2, .n_kv_heads = 1, .n_seqs = 1, .n_sealed = 1, .n_tail = 5};
  const std::vector<std::string> formats = read_formats(sizes.d);
  ASSERT_GT(formats.size(), 60U);
  std::map<std::string, std::unique_ptr<TestLayer>> encoded;
  for (const std::string& format : formats) {
    encoded[format] = std::make_unique<TestLayer>(sizes, format, format);
    encoded[format]->fill_sealed();
  }
  int n = 0;
  for (const std::string& key : formats) {
    for (const std::string& value : formats) {
      if (n++ % (kvant::testing::kEmulated ? 7 : 1) != 0) continue;
      TestLayer pair(sizes, key, value);
      for (int side = 0; side < 2; ++side) {
        const TestLayer& from = *encoded[side == KVANT_KEY ? key : value];
        std::memcpy(sealed_address(pair.layer, 0, 0, side, 0), sealed_address(from.layer, 0, 0, side, 0),
                    kvant_page_bytes((side == KVANT_KEY ? key : value).c_str(), sizes.d));
      }
      expect_like_double(
          pair, GetParam(),
          std::max(tolerance(GetParam(), key, sizes.d), tolerance(GetParam(), value, sizes.d)));
    }
  }
}

TEST_P(CpuKernels, AttendWithEveryHeadSize) {
  for (const int d : {16, 32, 64, 80, 96, 112, 128, 192, 256, 512}) {
    for (const char* format :
         {"bf16", "fp8", "tok4g32s", "ch4g128", "ch3g64", "prog4", "lm3", "tcq4", "vq-d4b8"}) {
      if (kvant_page_bytes(format, d) == 0) continue;
      TestLayer layer({.d = d, .n_kv_heads = 1, .n_seqs = 1}, format, format);
      layer.fill_sealed();
      expect_like_double(layer, GetParam(), tolerance(GetParam(), format, d));
    }
  }
}

TEST_P(CpuKernels, AttendWithEveryGroupAndLength) {
  for (const int group : {1, 2, 4, 5, 7, 16}) {
    for (const auto& [n_sealed, n_tail] : {std::pair{0, 1}, {0, 130}, {3, 0}, {9, 127}}) {
      TestLayer layer({.group = group, .n_sealed = n_sealed, .n_tail = n_tail}, "ch4g128", "tok4g128");
      layer.fill_sealed();
      expect_like_double(layer, GetParam(), 1e-3);
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
    expect_like_double(layer, GetParam(), tolerance(GetParam(), "tcq3", layer.sizes.d));
  }
}

// The expected outputs use the exact exponential, and drop tokens more than 6 below the largest score of all.
// These weights would be less than e^-6.
TEST_P(CpuKernels, AttendWithSas) {
  TestLayer layer({}, "prog4", "prog4");
  layer.fill_sealed();
  layer.shape.sas = 1;
  expect_like_double(layer, GetParam(), 0.01);
}

TEST_P(CpuKernels, LeaveOutMaskedAndHiddenTokens) {
  const LayerSizes sizes{.n_protected = 9};
  TestLayer layer(sizes, "ch4g128", "tok4g128");
  std::vector<std::uint32_t> masks(std::size_t{4} * sizes.n_seqs * sizes.n_kv_heads * sizes.n_sealed);
  std::mt19937 random(3);
  for (std::uint32_t& word : masks) {
    word = random();
    word &= random();
  }
  layer.fill_sealed();
  layer.layer.sink = 4;
  layer.layer.masks = masks.data();
  layer.layer.mask_seq_stride = sizes.n_kv_heads * sizes.n_sealed;
  layer.layer.mask_head_stride = sizes.n_sealed;
  expect_like_double(layer, GetParam(), 1e-3);
  const std::vector<std::int32_t> first_tokens = {0, 77};
  layer.lengths.first_tokens = first_tokens.data();
  expect_like_double(layer, GetParam(), 1e-3);
}

TEST_P(CpuKernels, AttendWithSeveralQueries) {
  for (const int n_tail : {3, 5, 200}) {  // The first tail has fewer tokens than there are queries.
    for (const int hidden : {0, 50, 131}) {
      TestLayer layer({.n_sealed = n_tail == 3 && hidden == 0 ? 0 : 2, .n_tail = n_tail, .n_queries = 5},
                      "ch4g128", "tok4g128");
      layer.fill_sealed();
      const std::vector<std::int32_t> first_tokens(layer.sizes.n_seqs, hidden), begins = {0, 2, 7};
      layer.lengths.first_tokens = first_tokens.data();
      expect_like_double(layer, GetParam(), 1e-3);
      layer.lengths.query_begins = begins.data();
      expect_like_double(layer, GetParam(), 1e-3);
    }
  }
}

// A draft that is verified must give the bits that its tokens give one by one.
TEST_P(CpuKernels, GiveEachOfSeveralQueriesTheBitsThatItHasAlone) {
  constexpr int kQueries = 4;
  for (const int n_tail : {4, 17, 128, 131}) {
    const LayerSizes sizes{.n_sealed = 5, .n_tail = n_tail, .n_queries = kQueries};
    TestLayer together(sizes, "ch4g128", "tok4g128");
    together.fill_sealed();
    const TestLayer::Result found = together.attend(GetParam());
    const std::size_t row = found.out.size() / (sizes.n_seqs * kQueries);
    for (int i = 0; i < kQueries; ++i) {
      LayerSizes one = sizes;
      one.n_queries = 1;
      TestLayer alone(one, "ch4g128", "tok4g128");
      alone.fill_sealed();
      for (int seq = 0; seq < sizes.n_seqs; ++seq) {
        alone.n_tail[seq] = n_tail - (kQueries - 1 - i);
        std::copy_n(&together.q[(seq * kQueries + i) * row], row, &alone.q[seq * row]);
      }
      const TestLayer::Result expected = alone.attend(GetParam());
      for (int seq = 0; seq < sizes.n_seqs; ++seq)
        EXPECT_TRUE(std::equal(&expected.out[seq * row], &expected.out[seq * row] + row,
                               &found.out[(seq * kQueries + i) * row]))
            << n_tail << " tokens, query " << i;
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
    expect_like_double(layer, GetParam(), 1e-3);
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
    expect_like_double(layer, GetParam(), 1e-3);
  }
}

// The keys of page 0 are far from the query, and the keys of page 1 are near. So page 0 has no weight.
TEST_P(CpuKernels, LeaveValuesUnreadThatCountLittle) {
  if (std::string(GetParam()) == "reference") GTEST_SKIP() << "the reference reads all values";
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
  expect_like_double(layer, GetParam(), 1e-3);
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
