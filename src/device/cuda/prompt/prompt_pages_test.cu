// Compares prefill attention that reads sealed pages with attention in double precision over the values that
// the page bytes represent. For integers, the error is also compared with the error that the kernels' scheme
// has in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/prompt/prompt_reference.h"
#include "device/cuda/test/correction_reference.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/page_test_cache.h"
#include "device/cuda/test/row_numbers.h"
#include "device/cuda/test/walsh_hadamard.h"
#include "kvant/kvant.h"

namespace kvant::cuda::prompt_pages_test {
namespace {

constexpr int kKvHeads = PageTestCache::kKvHeads;
constexpr int kGroup = 2;
constexpr int kHeads = kKvHeads * kGroup;

bool have_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

// Returns whether Hopper's kernels run. All other kernels attend to protected tokens in the tiles of their
// pages.
bool have_hopper_kernels() {
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = shape.n_kv_heads = shape.group = 1;
  shape.head_dim = 64;
  shape.softmax_scale = 1;
  shape.key_format = "ch4g128";
  shape.value_format = "tok4g128";
  const char* name = kvant_decode_kernel(&shape);
  return name != nullptr && std::string(name).find("sm90") != std::string::npos;
}

struct Sequence {
  int sealed;       // pages
  int first_token;  // first token of the rows
  int rows, queries;

  int tokens() const { return first_token + rows; }
  // Returns the index of a query's token in the sequence.
  int index(int query) const { return tokens() - queries + query; }
};

enum class Correction { none, relative, absolute };

// Some queries read a page in sealed form, and other queries read the page's tokens as rows. One sequence has
// no sealed pages.
const std::vector<Sequence> kSeenByRule = {
    {6, 128, 6 * 128 + 40, 4 * 128 + 20}, {4, 0, 4 * 128 + 3, 4 * 128 + 3}, {0, 0, 60, 60}};

// Describes a call of prefill attention and its data.
struct Case {
  std::vector<PageTestCache::Formats> formats;
  int head_dim;
  std::vector<Sequence> sequences;
  int sink = 0;
  bool masks = false;
  // If true, rows come from tail pages.
  bool in_tail = false;
  bool causal = true;
  int window = 0;  // tokens that are visible to a query; 0 if all
  // If true, products are half precision, with queries and outputs in F32.
  bool half_products = false;
  // Scores are capped at this value. 0 means no cap. Caps need half_products.
  float softcap = 0;
  // If true, the call rotates queries and outputs, and both have 16 bits.
  bool rotated = false;
  // If true, protected tokens are kept rows, which requires half_products to be false.
  bool kept = false;
  // Corrections need half_products.
  Correction correction = Correction::none;
  // Queries read pages in sealed form according to the cache's rule with this window. With -1, queries read
  // all pages in sealed form.
  int unquantized = -1;
};

int pages_seen(const Case& c, const Sequence& s, int query) {
  return c.unquantized < 0 ? s.sealed : std::min(s.sealed, sealed_pages(s.index(query), c.unquantized));
}

// Returns which rows of a sequence's matrix are visible to a query. The matrix holds the tokens of sealed
// pages, then the tokens of rows.
std::vector<Seen> seen_by(const Case& c, const Sequence& s, int query) {
  const int limit = c.causal ? s.index(query) + 1 : s.tokens();
  const int first = c.window > 0 ? first_visible_token(s.index(query), c.window) : 0;
  const int sealed = pages_seen(c, s, query) * kPageTokens;
  const int shift = s.sealed * kPageTokens - s.first_token;
  return {{first, std::max(std::min(limit, sealed), first)},
          {shift + std::max(first, sealed), shift + std::max({limit, first, sealed})}};
}

// Holds random maps and sums of KVLinC's correction. Each query uses the sums of the pages that the query
// reads in sealed form, up to the number of states.
class Corrections {
 public:
  Corrections(const Case& c, const std::vector<std::int32_t>& seen_pages)
      : d_(c.head_dim),
        is_absolute_(c.correction == Correction::absolute),
        maps_(normal_numbers(std::size_t{kHeads} * 2 * d_ * kMapColumns, 0.2F, 21)),
        states_(std::size_t{kStates} * kKvHeads * numbers(), 0),
        state_of_query_(seen_pages),
        device_maps_(maps_) {
    // The sums look like sums over real keys, so z is positive. State 0 stands for no page and is empty.
    const std::vector<float> normal = normal_numbers(states_.size(), 1, 22);
    for (std::size_t i = kKvHeads * numbers(); i < states_.size(); ++i) {
      const std::size_t in_state = i % numbers(), sums = numbers() - 2 * kMapColumns;
      states_[i] = in_state < sums ? 20 * normal[i] : 40 + normal[i];
    }
    for (std::int32_t& state : state_of_query_) state %= kStates;
    device_states_ = std::make_unique<DeviceArray<float>>(states_);
    device_state_of_query_ = std::make_unique<DeviceArray<std::int32_t>>(state_of_query_);
    correction_.struct_size = sizeof correction_;
    correction_.query_maps = device_maps_.get();
    correction_.states = device_states_->get();
    correction_.state_head_stride = static_cast<std::int64_t>(numbers());
    correction_.state_seq_stride = kKvHeads * correction_.state_head_stride;
    correction_.state_of_seq = device_state_of_query_->get();
    correction_.absolute = is_absolute_ ? 1 : 0;
  }

  const kvant_correction* get() const { return &correction_; }

  // Adds the correction to the attention of a query row, whose largest score is `top`.
  void join(int row, int head, const std::vector<double>& q, double top, Attention& attention) const {
    const std::vector<double> phi = features_of(&maps_[std::size_t{2} * head * d_ * kMapColumns], q);
    const float* state = &states_[(state_of_query_[row] * std::size_t{kKvHeads} + head / kGroup) * numbers()];
    const double base = is_absolute_ ? 0 : top;
    const double mass = std::exp(attention.lse - base);
    double sum = mass;
    for (int f = 0; f < 2 * kMapColumns; ++f) sum += phi[f] * state[2 * kMapColumns * d_ + f];
    for (int i = 0; i < d_; ++i) {
      attention.out[i] *= mass;
      for (int f = 0; f < 2 * kMapColumns; ++f) attention.out[i] += phi[f] * state[f * d_ + i];
      attention.out[i] /= sum;
    }
    attention.lse = base + std::log(sum);
  }

 private:
  static constexpr int kStates = 5;
  std::size_t numbers() const { return std::size_t{2} * kMapColumns * (d_ + 1); }

  int d_;
  bool is_absolute_;
  std::vector<float> maps_, states_;
  std::vector<std::int32_t> state_of_query_;
  DeviceArray<float> device_maps_;
  std::unique_ptr<DeviceArray<float>> device_states_;
  std::unique_ptr<DeviceArray<std::int32_t>> device_state_of_query_;
  kvant_correction correction_{};
};

struct Errors {
  double kernel, integers;   // relative RMS errors
  double lse, integers_lse;  // largest differences
};

// Runs a case and compares up to rows_of_head rows of each KV head and sequence.
Errors errors_of(const Case& c, int rows_of_head) {
  const int d = c.head_dim;
  std::vector<PageTestCache::Lengths> lengths;
  std::vector<std::int32_t> query_begins{0}, token_begins{0}, sealed_begins{0}, first_tokens, seen_pages;
  for (const Sequence& s : c.sequences) {
    lengths.push_back({s.sealed, s.rows});
    query_begins.push_back(query_begins.back() + s.queries);
    token_begins.push_back(token_begins.back() + s.rows);
    sealed_begins.push_back(sealed_begins.back() + s.sealed);
    first_tokens.push_back(s.first_token);
    for (int query = 0; query < s.queries; ++query) seen_pages.push_back(pages_seen(c, s, query));
  }
  const PageTestCache cache(c.formats, d, lengths, c.sink, c.masks);
  // Returns the values of a token. A sequence's tokens are the tokens of its sealed pages, then the tokens of
  // its rows.
  const auto row = [&](std::size_t s, int head, int side, int token) {
    return cache.row(s, head, side, token);
  };
  std::vector<std::uint16_t> bits[2];
  for (int side = 0; side < 2; ++side)
    for (std::size_t s = 0; s < c.sequences.size(); ++s)
      for (int t = 0; t < c.sequences[s].rows; ++t)
        for (int head = 0; head < kKvHeads; ++head)
          for (int i = 0; i < d; ++i)
            bits[side].push_back(
                bf16_from_float(row(s, head, side, c.sequences[s].sealed * kPageTokens + t)[i]));
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> q_numbers(static_cast<std::size_t>(query_begins.back()) * kHeads * d);
  for (float& x : q_numbers) x = float_from_bf16(bf16_from_float(normal(random)));
  // Queries and outputs have this type.
  const kvant_type type = !c.half_products ? KVANT_BF16
                          : !c.rotated     ? KVANT_F32
                          : d == 128       ? KVANT_F16
                                           : KVANT_BF16;

  const std::vector<std::uint8_t> q_bytes = as_bytes(q_numbers, type);
  DeviceArray<std::uint8_t> q(q_bytes), out(std::vector<std::uint8_t>(q_bytes.size(), 0xff));
  DeviceArray<std::uint16_t> k(bits[0]), v(bits[1]);
  DeviceArray<float> lse(std::vector<float>(q_numbers.size() / d, NAN));
  DeviceArray<std::int32_t> query_begins_there(query_begins), token_begins_there(token_begins),
      sealed_begins_there(sealed_begins), first_tokens_there(first_tokens), seen_pages_there(seen_pages);
  kvant_prompt_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = static_cast<int>(c.sequences.size());
  shape.n_heads = kHeads;
  shape.n_kv_heads = kKvHeads;
  shape.head_dim = d;
  shape.n_queries = query_begins.back();
  shape.n_tokens = token_begins.back();
  shape.softmax_scale = 0.7F / std::sqrt(static_cast<float>(d));
  shape.causal = c.causal ? 1 : 0;
  shape.window = c.window;
  shape.n_sealed_pages = sealed_begins.back();
  shape.half_products = c.half_products ? 1 : 0;
  shape.score_softcap = c.softcap;
  if (c.kept) shape.n_kept_tokens = sealed_begins.back() * kPageTokens;
  shape.corrected = c.correction != Correction::none ? 1 : 0;
  std::size_t bytes = 0;
  EXPECT_EQ(kvant_prompt_workspace(&shape, &bytes), KVANT_OK) << kvant_last_error();
  DeviceArray<unsigned char> workspace(std::vector<unsigned char>(bytes, 0xff));
  kvant_prompt_pages pages{};
  pages.struct_size = sizeof pages;
  pages.shape = &cache.shape();
  pages.layer = &cache.layer();
  pages.sealed_begins = sealed_begins_there.get();
  if (c.unquantized >= 0) {
    pages.query_sealed_pages = seen_pages_there.get();
    pages.first_row_tokens = first_tokens_there.get();
  }
  kvant_prompt prompt{};
  prompt.struct_size = sizeof prompt;
  prompt.query_begins = query_begins_there.get();
  prompt.token_begins = token_begins_there.get();
  prompt.q = q.get();
  if (!c.in_tail) {
    prompt.k = k.get();
    prompt.v = v.get();
  }
  prompt.out = out.get();
  prompt.q_hadamard = prompt.out_hadamard = c.rotated ? 1 : 0;
  prompt.q_type = prompt.out_type = type;
  prompt.q_token_stride = prompt.out_token_stride = std::int64_t{kHeads} * d;
  prompt.k_token_stride = prompt.v_token_stride = std::int64_t{kKvHeads} * d;
  prompt.q_head_stride = prompt.k_head_stride = prompt.v_head_stride = prompt.out_head_stride = d;
  prompt.lse = lse.get();
  prompt.lse_token_stride = kHeads;
  prompt.lse_head_stride = 1;
  prompt.pages = &pages;
  std::optional<Corrections> corrections;
  if (c.correction != Correction::none) prompt.correction = corrections.emplace(c, seen_pages).get();
  EXPECT_EQ(kvant_prompt_attention(&shape, &prompt, workspace.get(), bytes, nullptr), KVANT_OK)
      << kvant_last_error();
  check_cuda(cudaDeviceSynchronize(), "prompt attention");
  const std::vector<std::uint8_t> out_bytes = out.read();
  std::vector<float> got(q_numbers.size());
  for (std::size_t i = 0; i < got.size(); ++i) got[i] = number_at(out_bytes, type, i);
  const auto sums = lse.read();

  Errors errors{};
  double squares = 0;
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    const Sequence& sequence = c.sequences[s];
    for (int kv_head = 0; kv_head < kKvHeads; ++kv_head) {
      Matrix keys, values;
      for (int side = 0; side < 2; ++side)
        for (int t = 0; t < sequence.sealed * kPageTokens + sequence.rows; ++t)
          for (int i = 0; i < d; ++i) (side == 0 ? keys : values).push_back(row(s, kv_head, side, t)[i]);
      const Matrix integer_keys = rounded_keys(keys, d);
      const Matrix integer_values = rounded_values(values, d, false);
      const int n = std::min(rows_of_head, sequence.queries);
      for (int i = 0; i < n; ++i) {
        const int query = n > 1 ? i * (sequence.queries - 1) / (n - 1) : sequence.queries - 1;
        const std::size_t place =
            static_cast<std::size_t>(query_begins[s] + query) * kHeads + kv_head * kGroup + i % kGroup;
        std::vector<double> x(d);
        for (int channel = 0; channel < d; ++channel) x[channel] = q_numbers[place * d + channel];
        if (c.rotated) x = rotated(x, c.head_dim);
        const std::vector<Seen> seen = seen_by(c, sequence, query);
        auto exact = attend(x.data(), keys, values, d, shape.softmax_scale, seen, Scheme::exact, c.softcap);
        if (c.rotated) exact.out = rotated(exact.out, c.head_dim);
        if (corrections)
          corrections->join(query_begins[s] + query, kv_head * kGroup + i % kGroup, x, exact.top, exact);
        auto integers =
            attend(x.data(), integer_keys, integer_values, d, shape.softmax_scale, seen, Scheme::integers);
        if (c.rotated) integers.out = rotated(integers.out, c.head_dim);
        for (int channel = 0; channel < d; ++channel) {
          const double y = got[place * d + channel];
          EXPECT_TRUE(std::isfinite(y)) << "query " << query;
          squares += exact.out[channel] * exact.out[channel];
          errors.kernel += std::pow(y - exact.out[channel], 2);
          errors.integers += std::pow(integers.out[channel] - exact.out[channel], 2);
        }
        errors.lse = std::max(errors.lse, std::abs(sums[place] - exact.lse));
        errors.integers_lse = std::max(errors.integers_lse, std::abs(integers.lse - exact.lse));
      }
    }
  }
  errors.kernel = std::sqrt(errors.kernel / squares);
  errors.integers = std::sqrt(errors.integers / squares);
  return errors;
}

// Expects half precision to be accurate. Decoded pages are rounded to BF16, and queries and weights to 11
// bits. Keys with a few large channels give scores of several tens, whose rounding affects the LSE.
void expect_accurate_in_half(Case c, const char* what) {
  c.half_products = true;
  const Errors errors = errors_of(c, 14);
  std::printf("%-10s %s + %s, d = %d, cap %.0f: error in half precision %.5f  lse %.5f\n", what,
              c.formats[0].key, c.formats[0].value, c.head_dim, c.softcap, errors.kernel, errors.lse);
  EXPECT_LT(errors.kernel, 0.005) << what;
  EXPECT_LT(errors.lse, 0.05) << what;
}

// Expects integers to be about as accurate as their scheme in double precision. Decoded pages are first
// rounded to BF16. Head sizes above 256 do not support integers.
void expect_accurate_in_integers(const Case& c, const char* what) {
  if (c.head_dim > 256) return;
  const Errors errors = errors_of(c, 14);
  std::printf("%-10s %s + %s, d = %d: error %.4f  integers %.4f  lse %.4f  integers %.4f\n", what,
              c.formats[0].key, c.formats[0].value, c.head_dim, errors.kernel, errors.integers, errors.lse,
              errors.integers_lse);
  EXPECT_LT(errors.kernel, 1.2 * errors.integers + 0.005) << what;
  EXPECT_LT(errors.lse, 1.5 * errors.integers_lse + 0.06) << what;
}

void expect_accurate(const Case& c, const char* what) {
  expect_accurate_in_half(c, what);
  expect_accurate_in_integers(c, what);
}

class PromptOverPages : public ::testing::TestWithParam<std::tuple<PageTestCache::Formats, int>> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
  Case with(std::vector<Sequence> sequences) const {
    const auto& [formats, d] = GetParam();
    return {{formats}, d, std::move(sequences)};
  }
};

TEST_P(PromptOverPages, SeesSealedTokensBehindWhichItsRowsFollow) {
  expect_accurate(
      with({{3, 384, 140, 140}, {1, 128, 1, 1}, {0, 0, 200, 200}, {5, 640, 77, 30}, {2, 256, 0, 0}}),
      "plain");
}

TEST_P(PromptOverPages, TakesSinkAndProtectedTokensFromTheirPages) {
  Case c = with({{7, 896, 140, 140}, {2, 256, 300, 210}});
  c.sink = 5;
  c.masks = true;
  expect_accurate(c, "protected");
}

// The prompt's own pages are sealed before the prompt attends. Each query must read exactly the pages in
// sealed form that the rule allows.
TEST_P(PromptOverPages, SeesEachPageSealedFromTheTokenOnThatTheRuleSays) {
  for (const int unquantized : {0, 128, 200}) {
    Case c = with(kSeenByRule);
    c.unquantized = unquantized;
    c.in_tail = unquantized != 200;
    expect_accurate(c, "rule");
  }
}

constexpr PageTestCache::Formats kPairs[] = {
    {"ch4g128", "tok4g128"}, {"ch2g128", "tok2g128"}, {"tok4g128", "ch2g128"},  {"tok2g128", "ch4g128"},
    {"prog4", "prog2"},      {"prog2", "prog4"},      {"lm2", "lm3"},           {"lm3", "lm4"},
    {"lm4", "lm2"},          {"vq-d2b8", "vq-d4b8"},  {"vq-d4b8", "vq-d2b8"},   {"vq-d4b10", "vq-d8b12"},
    {"vq-d8b12", "vq-d8b8"}, {"vq-d8b8", "vq-d4b12"}, {"vq-d4b12", "vq-d4b10"}, {"tcq1", "tcq2"},
    {"tcq2", "tcq1"},        {"tcq3", "tcq4"},        {"tcq4", "tcq3"},         {"tcq5", "tcq6"},
    {"tcq6", "tcq5"},        {"fp8", "tok8g32s"},     {"ch3g64", "tok5g128"},   {"prog3", "prog5"},
    {"lm5", "nvq-d4b10"},    {"pq-d4b8", "tok1g32s"}, {"ch1g32", "prog2-paper"}};

// There are pages of each kind, including the largest.
constexpr PageTestCache::Formats kPairsOfWideHeads[] = {{"ch4g128", "tok4g128"}, {"prog4", "prog2"},
                                                        {"lm4", "lm2"},          {"vq-d4b8", "vq-d8b12"},
                                                        {"tcq4", "tcq3"},        {"fp8", "tok8g32s"}};

std::string name_of(const ::testing::TestParamInfo<PromptOverPages::ParamType>& info) {
  const auto& [formats, d] = info.param;
  std::string name = std::string(formats.key) + "_" + formats.value + "_d" + std::to_string(d);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Formats, PromptOverPages,
                         ::testing::Combine(::testing::ValuesIn(kPairs), ::testing::Values(64, 128)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FormatsOfWideHeads, PromptOverPages,
                         ::testing::Combine(::testing::ValuesIn(kPairsOfWideHeads),
                                            ::testing::Values(256, 512)),
                         name_of);

class PromptOverPagesOf4Bits : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
  Case with(std::vector<Sequence> sequences) const {
    return {{{"ch4g128", "tok4g128"}}, GetParam(), std::move(sequences)};
  }
  void expect_rotated(const std::vector<Sequence>& sequences) const {
    Case c = with(sequences);
    c.unquantized = 0;
    c.sink = 1;
    c.in_tail = true;
    c.rotated = true;
    for (const float cap : {0.F, 20.F}) {
      c.softcap = cap;
      expect_accurate_in_half(c, "rotated");
    }
    c.softcap = 0;
    expect_accurate_in_integers(c, "rotated");
  }
  // The test also runs the case with a cap, for which Hopper has a different kernel.
  static void expect_accurate_and_capped(Case c, const char* what) {
    expect_accurate(c, what);
    c.softcap = 20;
    expect_accurate_in_half(c, what);
  }
};

TEST_P(PromptOverPagesOf4Bits, TakesFormatsByHead) {
  Case c = with({{3, 384, 9, 9}, {1, 128, 200, 150}});
  c.formats = {{"tcq3", "lm4"}, {"ch4g128", "tok2g128"}, {"prog2", "prog4"}};
  c.sink = 4;
  c.masks = true;
  expect_accurate_and_capped(c, "by head");
}

TEST_P(PromptOverPagesOf4Bits, RotatesQueriesAndOutputs) {
  expect_rotated(kSeenByRule);
}

// There are more queries than rows of tiles. Half precision therefore undoes the rotation of tiles' rows
// instead of rotating queries and outputs.
TEST_P(PromptOverPagesOf4Bits, RotatesRowsOfTilesBack) {
  expect_rotated({{4, 0, 515, 515}, {0, 0, 60, 60}, {1, 0, 200, 200}});
}

// Some queries read no page in sealed form, so nothing corrects their rows.
TEST_P(PromptOverPagesOf4Bits, IsCorrected) {
  if (GetParam() > 128) GTEST_SKIP() << "there is no correction of these";
  for (const Correction correction : {Correction::relative, Correction::absolute}) {
    Case c = with(kSeenByRule);
    c.unquantized = 0;
    c.sink = 5;
    c.in_tail = true;
    c.correction = correction;
    expect_accurate_in_half(c, "corrected");
  }
}

// Tiles are made directly from codes (code_tiles.cuh), for each side alone and for both sides. The prompt
// also has tiles that are made from rows.
TEST_P(PromptOverPagesOf4Bits, MakesTilesOfCodes) {
  for (const PageTestCache::Formats& formats : {PageTestCache::Formats{"prog4", "prog4"},
                                                {"ch4g128", "prog4"},
                                                {"prog4", "tok4g64"},
                                                {"ch4g128", "lm4"},
                                                {"tcq4", "tok4g128"}}) {
    Case c = with({{3, 384, 140, 140}, {0, 0, 20, 20}, {17, 17 * 128, 300, 210}});
    c.formats = {formats};
    expect_accurate_in_integers(c, "of codes");
    c.sink = 4;
    expect_accurate_in_integers(c, "of codes, with a sink");
    c.sink = 0;
    c.window = 700;
    expect_accurate_in_integers(c, "of codes, with a window");
    // The call has more sequences than pages.
    c = with({{0, 0, 9, 9}, {0, 0, 150, 150}, {1, 128, 30, 30}, {0, 0, 40, 40}});
    c.formats = {formats};
    expect_accurate_in_integers(c, "of codes, few pages");
  }
}

// The prefix is so long that centres and scales come from a sample of the tiles.
TEST_P(PromptOverPagesOf4Bits, SeesLongPrefixes) {
  expect_accurate_and_capped(with({{40, 40 * 128, 300, 300}, {17, 17 * 128, 2, 2}}), "long");
}

TEST_P(PromptOverPagesOf4Bits, SeesEachPageSealedFromTheTokenOnThatTheRuleSays) {
  Case c = with(kSeenByRule);
  c.unquantized = 0;
  c.sink = 5;
  expect_accurate_and_capped(c, "rule");
}

// Some rows of a block read the pages of protected tokens in sealed form, and other rows read the pages'
// tokens as rows.
TEST_P(PromptOverPagesOf4Bits, TakesProtectedTokensOfPagesOfThePromptItself) {
  Case c = with(kSeenByRule);
  c.unquantized = 128;
  c.sink = 5;
  c.masks = true;
  c.in_tail = true;
  expect_accurate_and_capped(c, "protected by rule");
}

TEST_P(PromptOverPagesOf4Bits, AttendsToKeptRowsBesideItsTiles) {
  Case c = with({{7, 896, 140, 140}, {0, 0, 50, 50}, {40, 40 * 128, 300, 300}, {2, 256, 300, 210}});
  c.sink = 5;
  c.masks = true;
  expect_accurate_in_integers(c, "in tiles");
  c.kept = true;
  expect_accurate_in_integers(c, "kept");
  c.masks = false;
  expect_accurate_in_integers(c, "kept sink");
}

TEST_P(PromptOverPagesOf4Bits, AttendsToKeptRowsOfThePagesThatAQuerySees) {
  Case c = with(kSeenByRule);
  c.masks = true;
  c.kept = true;
  for (const int unquantized : {0, 128}) {
    c.sink = unquantized == 0 ? 5 : 0;
    c.unquantized = unquantized;
    c.in_tail = unquantized == 0;
    expect_accurate_in_integers(c, "kept by rule");
  }
}

// All tokens but one or two are kept rows.
TEST_P(PromptOverPagesOf4Bits, LosesNothingOfKeptRows) {
  if (GetParam() > 256) GTEST_SKIP() << "prompts in integers are for smaller heads";
  Case c = with({{1, 128, 1, 1}, {1, 128, 2, 2}, {1, 128, 0, 0}});
  c.sink = 128;
  const double rounded = errors_of(c, 2).kernel;
  c.kept = true;
  const double kept = errors_of(c, 2).kernel;
  std::printf("d = %d: error in integers %.5f  kept %.5f\n", c.head_dim, rounded, kept);
  if (GetParam() != 256 && have_hopper_kernels()) {
    EXPECT_LT(kept, 0.004);
  }
}

TEST_P(PromptOverPagesOf4Bits, SeesAWindow) {
  for (const int window : {1, 100, 300, 700})
    for (const bool by_rule : {false, true}) {
      Case c =
          by_rule ? with({{5, 128, 5 * 128 + 9, 2 * 128 + 50}}) : with({{6, 768, 300, 300}, {4, 512, 5, 3}});
      c.window = window;
      if (by_rule) c.unquantized = 0;
      expect_accurate_and_capped(c, "window");
    }
}

TEST_P(PromptOverPagesOf4Bits, SeesAllTokensUnlessCausal) {
  Case c = with({{3, 384, 140, 100}, {0, 0, 30, 60}, {2, 256, 0, 50}});
  c.causal = false;
  c.in_tail = true;
  expect_accurate_and_capped(c, "all");
}

INSTANTIATE_TEST_SUITE_P(HeadDims, PromptOverPagesOf4Bits, ::testing::Values(64, 128, 256, 512));

TEST(PromptPagesRefusals, NameTheArgument) {
  kvant_decode_shape of_pages{};
  of_pages.struct_size = sizeof of_pages;
  of_pages.n_kv_heads = 2;
  of_pages.head_dim = 64;
  of_pages.key_format = of_pages.value_format = "tcq4";
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  const auto refused =
      [&](const std::function<void(kvant_prompt_shape&, kvant_prompt&, kvant_prompt_pages&)>& spoil) {
        alignas(16) static char somewhere[16];
        const auto* numbers = reinterpret_cast<const std::int32_t*>(somewhere);
        kvant_prompt_shape shape{};
        shape.struct_size = sizeof shape;
        shape.n_seqs = 1;
        shape.n_heads = shape.n_kv_heads = 2;
        shape.head_dim = 64;
        shape.n_queries = shape.n_tokens = shape.n_sealed_pages = 1;
        shape.softmax_scale = 1;
        kvant_prompt_pages pages{};
        pages.struct_size = sizeof pages;
        pages.shape = &of_pages;
        pages.layer = &layer;
        kvant_prompt prompt{};
        prompt.struct_size = sizeof prompt;
        prompt.query_begins = prompt.token_begins = numbers;
        prompt.q = prompt.k = prompt.v = prompt.out = somewhere;
        prompt.pages = &pages;
        spoil(shape, prompt, pages);
        EXPECT_EQ(kvant_prompt_attention(&shape, &prompt, nullptr, 0, nullptr), KVANT_INVALID_ARGUMENT);
        return std::string(kvant_last_error());
      };
  const auto has = [&](const std::string& reason, const char* name) {
    EXPECT_NE(reason.find(name), std::string::npos) << reason;
  };
  alignas(16) static std::int32_t some[4];
  has(refused([](auto&, auto&, auto& pages) { pages.struct_size = 1; }), "kvant_prompt_pages");
  has(refused([](auto&, auto&, auto& pages) { pages.shape = nullptr; }), "kvant_decode_shape");
  has(refused([](auto&, auto&, auto& pages) { pages.layer = nullptr; }), "kvant_decode_layer");
  has(refused([](auto& shape, auto&, auto&) { shape.half = 1; }), "half");
  has(refused([](auto& shape, auto&, auto&) { shape.corrected = 1; }), "shape.corrected");
  static constexpr kvant_correction kNothing{sizeof kNothing};
  has(refused([](auto& shape, auto& prompt, auto&) {
        shape.half_products = 1;
        prompt.correction = &kNothing;
      }),
      "prompt.correction");
  has(refused([](auto& shape, auto& prompt, auto&) {
        shape.half_products = shape.corrected = 1;
        prompt.correction = &kNothing;
      }),
      "states");
  has(refused([](auto& shape, auto&, auto&) { shape.n_kv_heads = 1; }), "pages.shape");
  has(refused([](auto&, auto&, auto& pages) { pages.sealed_begins = some; }), "layer.sealed");
  const std::int64_t odd[] = {0, 0, 0, 24};
  layer.sealed_offsets = odd;
  has(refused([](auto&, auto&, auto&) {}), "layer.sealed_offsets");
  layer.sealed_offsets = nullptr;
  has(refused([](auto&, auto& prompt, auto&) { prompt.k = prompt.v = nullptr; }), "layer.tail");
  has(refused([](auto&, auto& prompt, auto&) { prompt.k = nullptr; }), "k and v");
  has(refused([](auto&, auto& prompt, auto&) { prompt.k = prompt.v = nullptr, prompt.pages = nullptr; }),
      "tail");
  has(refused([](auto&, auto&, auto& pages) { pages.query_sealed_pages = some; }), "query_sealed_pages");
  has(refused([](auto&, auto&, auto&) {}), "workspace");
}

}  // namespace
}  // namespace kvant::cuda::prompt_pages_test
