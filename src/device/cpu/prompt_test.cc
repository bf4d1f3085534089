// Compares prompts of the CPU library with attention in double precision.
#include <cstring>
#include <memory>

#include "device/cpu/test_layer.h"

namespace kvant::device::cpu {
namespace {

struct PromptSizes {
  int d = 64, n_kv_heads = 2, n_seqs = 2, n_sealed = 2, n_protected = 0;
};

// TestPrompt has one or two sequences. The queries of the first are the last 150 of its 200 rows, and the
// queries of the second the last 70 of its 90. Sealed pages come before the rows, and may also hold the first
// rows.
struct TestPrompt {
  explicit TestPrompt(const std::string& key = "ch4g128", const std::string& value = "tok4g128",
                      const PromptSizes& of = {})
      : layer({.d = of.d,
               .group = 2,
               .n_kv_heads = of.n_kv_heads,
               .n_seqs = of.n_seqs,
               .n_sealed = of.n_sealed,
               .n_tail = 200,
               .n_protected = of.n_protected},
              key, value) {
    const int d = of.d, n_heads = 2 * of.n_kv_heads, n_sealed = of.n_sealed;
    layer.fill_sealed();
    shape.struct_size = sizeof shape;
    shape.n_seqs = of.n_seqs;
    shape.n_heads = n_heads;
    shape.n_kv_heads = of.n_kv_heads;
    shape.head_dim = d;
    shape.n_queries = query_begins[of.n_seqs];
    shape.n_tokens = token_begins[of.n_seqs];
    q = halves_of(normal(std::size_t{1} * shape.n_queries * n_heads * d, 1));
    k = halves_of(normal(std::size_t{1} * shape.n_tokens * of.n_kv_heads * d, 2));
    v = halves_of(normal(std::size_t{1} * shape.n_tokens * of.n_kv_heads * d, 3));
    shape.softmax_scale = layer.shape.softmax_scale;
    shape.causal = shape.half_products = 1;
    shape.n_sealed_pages = of.n_seqs * n_sealed;
    pages.struct_size = sizeof pages;
    pages.shape = &layer.shape;
    pages.layer = &layer.layer;
    sealed_begins = {0, n_sealed, 2 * n_sealed};
    pages.sealed_begins = sealed_begins.data();
    prompt.struct_size = sizeof prompt;
    prompt.query_begins = query_begins;
    prompt.token_begins = token_begins;
    prompt.q = q.data();
    prompt.k = k.data();
    prompt.v = v.data();
    prompt.q_token_stride = prompt.out_token_stride = std::int64_t{n_heads} * d;
    prompt.k_token_stride = prompt.v_token_stride = std::int64_t{of.n_kv_heads} * d;
    prompt.q_head_stride = prompt.k_head_stride = prompt.v_head_stride = prompt.out_head_stride = d;
    prompt.out_type = KVANT_F32;
    prompt.lse_token_stride = n_heads;
    prompt.lse_head_stride = 1;
    if (n_sealed > 0) prompt.pages = &pages;
  }

  std::vector<std::uint16_t> halves_of(const std::vector<float>& values) const {
    std::vector<std::uint16_t> to(values.size());
    bf16_row_from_float(values.data(), to.data(), static_cast<int>(values.size()));
    return to;
  }

  TestLayer::Result attend(const char* kernels) {
    TestLayer::Result result = prepare_result();
    shape.kernels = kernels;
    EXPECT_EQ(kvant_prompt_attention(&shape, &prompt, nullptr, 0, nullptr), KVANT_OK) << kvant_last_error();
    return result;
  }

  TestLayer::Result attend_in_double() {
    TestLayer::Result result = prepare_result();
    testing::prompt_in_double(shape, prompt);
    return result;
  }

  // Lets attention write into the result.
  TestLayer::Result prepare_result() {
    TestLayer::Result result{std::vector<float>(q.size(), -7.0F),
                             std::vector<float>(q.size() / shape.head_dim, -7.0F)};
    prompt.out = result.out.data();
    prompt.lse = result.lse.data();
    return result;
  }

  TestLayer layer;
  const std::int32_t query_begins[3] = {0, 150, 220}, token_begins[3] = {0, 200, 290};
  std::vector<std::int32_t> sealed_begins;
  std::vector<std::uint16_t> q, k, v;
  kvant_prompt_shape shape{};
  kvant_prompt_pages pages{};
  kvant_prompt prompt{};
};

void expect_prompt_like_double(TestPrompt& test, const char* kernels, double most,
                               const std::string& name = "") {
  const TestLayer::Result expected = test.attend_in_double(), found = test.attend(kernels);
  expect_close(found, expected, most, name);
}

class CpuPrompts : public WithKernels {};
INSTANTIATE_TEST_SUITE_P(reference, CpuPrompts, ::testing::Values("reference"));
#define KVANT_INSTRUCTION_SET(set) INSTANTIATE_TEST_SUITE_P(set, CpuPrompts, ::testing::Values(#set));
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET

// Pages of codes are multiplied as 16-bit numbers, and all others in F32 once they are decoded.
constexpr double kMostOfPrompts = 1e-3;

TEST_P(CpuPrompts, AttendToEveryFormat) {
  for (const std::string& format : read_formats(64)) {
    TestPrompt test(format, format, {.n_kv_heads = 1, .n_seqs = 1});
    expect_prompt_like_double(test, GetParam(), kMostOfPrompts, format);
  }
}

TEST_P(CpuPrompts, AttendWithEveryHeadSizeWithAndWithoutPages) {
  for (const int d : {64, 80, 128, 256, 512}) {
    for (const int n_sealed : {0, 1, 3}) {
      TestPrompt test("ch4g128", "tok4g64", {.d = d, .n_kv_heads = 1, .n_seqs = 1, .n_sealed = n_sealed});
      expect_prompt_like_double(test, GetParam(), kMostOfPrompts, fmt::format("{}, {} pages", d, n_sealed));
    }
  }
}

TEST_P(CpuPrompts, AttendWithAllThatScoresObey) {
  const std::vector<float> sinks = normal(4, 31);
  const std::vector<std::pair<const char*, std::function<void(TestPrompt&)>>> asked = {
      {"no mask", [](TestPrompt& t) { t.shape.causal = 0; }},
      {"a window", [](TestPrompt& t) { t.shape.window = 150; }},
      {"a short window", [](TestPrompt& t) { t.shape.window = 3; }},
      {"a cap", [](TestPrompt& t) { t.shape.score_softcap = 3; }},
      {"sink logits", [&](TestPrompt& t) { t.prompt.sink_logits = sinks.data(); }},
      {"rotations", [](TestPrompt& t) { t.prompt.q_hadamard = t.prompt.out_hadamard = 1; }},
      {"F16 rows", [](TestPrompt& t) { t.shape.half = 1; }},
      {"rows in the tail", [](TestPrompt& t) { t.prompt.k = t.prompt.v = nullptr; }},
      {"integers", [](TestPrompt& t) { t.shape.half_products = 0; }},
  };
  for (const auto& [name, ask] : asked) {
    TestPrompt test;
    ask(test);
    expect_prompt_like_double(test, GetParam(), kMostOfPrompts, name);
  }
}

// The library drops tokens that are 6 below the largest score so far. Double precision drops tokens that are
// 6 below the largest score of all. A token that only one of them drops has at most e^-6 of the largest
// weight, and there are up to 456 tokens.
TEST_P(CpuPrompts, AttendWithSas) {
  TestPrompt test;
  test.shape.sas = 1;
  expect_prompt_like_double(test, GetParam(), 0.1);
}

// The first queries see one sealed page, and later queries see two. The rows begin within a page or at its
// end.
TEST_P(CpuPrompts, SeeWhatIsSealedWhenTheyAttend) {
  std::vector<std::int32_t> seen(220, 1);
  for (int i = 60; i < 150; ++i) seen[i] = 2;
  for (int i = 150; i < 220; ++i) seen[i] = 2;
  for (const int window : {0, 170}) {
    for (const int first : {100, 128}) {
      TestPrompt test;
      const std::int32_t first_row_tokens[2] = {first, first};
      test.pages.query_sealed_pages = seen.data();
      test.pages.first_row_tokens = first_row_tokens;
      test.shape.window = window;
      expect_prompt_like_double(test, GetParam(), kMostOfPrompts,
                                fmt::format("{}, window {}", first, window));
    }
  }
}

// KVANT_BF16 names the type of the rows. If rows are half precision, queries of this type are so, too.
TEST_P(CpuPrompts, ReadSixteenBitQueriesInTheTypeOfTheRows) {
  TestPrompt test("ch4g128", "tok4g64", {.n_sealed = 0});
  test.shape.half = 1;
  test.prompt.q_type = KVANT_BF16;
  const TestLayer::Result named = test.attend(GetParam());
  test.prompt.q_type = KVANT_F16;
  EXPECT_EQ(named.out, test.attend(GetParam()).out);
  test.shape.half = 0;
  EXPECT_NE(named.out, test.attend(GetParam()).out);
}

TEST_P(CpuPrompts, TakeProtectedTokensFromTheirPages) {
  for (const int window : {0, 250}) {
    TestPrompt test("ch4g128", "tok4g128", {.n_protected = 140});
    std::vector<std::uint32_t> masks(std::size_t{4} * 2 * 2 * 2);
    std::mt19937 random(3);
    for (std::uint32_t& word : masks) {
      word = random();
      word &= random();
    }
    test.layer.layer.sink = 4;
    test.layer.layer.masks = masks.data();
    test.layer.layer.mask_seq_stride = 4;
    test.layer.layer.mask_head_stride = 2;
    test.shape.window = window;
    expect_prompt_like_double(test, GetParam(), kMostOfPrompts, fmt::format("window {}", window));
  }
}

TEST_P(CpuPrompts, CorrectWhatPagesLose) {
  TestPrompt test("ch2g128", "tok2g128");
  std::vector<float> maps = normal(std::size_t{4} * 2 * 64 * 128, 51),
                     states = normal(std::size_t{6} * 256 * 65, 52);
  for (float& x : maps) x *= 0.2F;
  for (float& x : states) x = std::abs(x) * 0.1F;
  std::vector<std::int32_t> state_of_row(220);
  for (int i = 0; i < 220; ++i) state_of_row[i] = i % 3;
  kvant_correction correction{};
  correction.struct_size = sizeof correction;
  correction.query_maps = maps.data();
  correction.states = states.data();
  correction.state_head_stride = 256 * 65;
  correction.state_seq_stride = 2 * 256 * 65;
  correction.state_of_seq = state_of_row.data();
  test.shape.corrected = 1;
  test.prompt.correction = &correction;
  for (const int absolute : {0, 1}) {
    correction.absolute = absolute;
    expect_prompt_like_double(test, GetParam(), kMostOfPrompts);
  }
}

}  // namespace
}  // namespace kvant::device::cpu
