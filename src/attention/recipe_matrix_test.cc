// Runs every product recipe on the reference and on a device that serves the recipe, and every pair of
// features on a few formats, through the life of a sequence. The operations are append, attend, seal, fork,
// prefix hit, abort, truncate, checkpoint, export and import. Outputs are compared in double precision with
// attention to what the cache has stored. The outputs are also compared with attention to what was appended,
// within a bound that depends only on the bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "attention/attention_fixture.h"
#include "attention/device_backend.h"
#include "base/testing/emulation.h"
#include "cache/testing/host_pages.h"
#include "recipe/recipe_fixture.h"

namespace kvant::recipe_matrix_test {
namespace {

using testing::attend_tokens;
using testing::kKeyRows;
using testing::kQueryRows;
using testing::kValueRows;
using testing::Outputs;
using testing::plan_for;
using testing::small_geometry;

constexpr int kPrompt = 400, kDecoded = 3;
constexpr int kChunks[] = {250, 150};

// Layer 1 has a sliding window.
Geometry geometry(int head_dim) {
  Geometry g = small_geometry(head_dim, 4, 2, 2);
  g.sliding_window = {0, 150};
  return g;
}

testing::RowSource source(const Geometry& g) {
  return [g](int layer, int head, int kind, int token) {
    static std::map<std::tuple<int, int, int, int, int>, std::vector<float>>
        // Making rows takes time, so each row is made once.
        rows;
    const int head_dim = g.dim(layer);
    std::vector<float>& row = rows[{head_dim, layer, head, kind, token}];
    if (row.empty()) {
      row = testing::token_values(layer, head, kind, token, head_dim);
      for (float& x : row) x *= kind == kQueryRows ? 0.3F : 1.0F;
    }
    return row;
  };
}

// Returns the attention of one token to all unquantized tokens.
std::vector<double> plain_attention(const Geometry& g, int layer, int head, int t) {
  const auto values = source(g);
  const auto q = values(layer, head, kQueryRows, t);
  const int d = g.dim(layer), kv_head = head / g.group(layer);
  const int first = g.slides(layer) ? std::max(0, t + 1 - g.sliding_window[layer]) : 0;
  std::vector<double> scores, out(d, 0.0);
  for (int j = first; j <= t; ++j) {
    scores.push_back(testing::dot(q.data(), values(layer, kv_head, kKeyRows, j).data(), d) * g.softmax_scale);
  }
  const auto weights = testing::softmax_in_double(scores);
  for (int j = first; j <= t; ++j) {
    const auto v = values(layer, kv_head, kValueRows, j);
    for (int c = 0; c < d; ++c) out[c] += weights[j - first] * v[c];
  }
  return out;
}

// Returns the attention of one token to what a sequence's pages hold, decoded by their formats and
// transforms.
std::vector<double> stored_attention(const Geometry& g, const Cache& cache, SequenceId s, int layer, int head,
                                     int t) {
  const int d = g.dim(layer), kv_head = head / g.group(layer);
  const HeadPlan& plan = cache.plan().head(layer, kv_head);
  const int first = g.slides(layer) ? std::max(0, t + 1 - g.sliding_window[layer]) : 0;
  const ListedPages list = cache.pages(s).list_pages(layer, kv_head, first).value();
  const auto rows_of = [d](const PageSide& side, const Transform& transform, int n) {
    std::vector<float> rows(static_cast<std::size_t>(kPageTokens) * d);
    side.format->decode(side.bytes, n, *side.context, rows.data());
    transform.inverse({rows.data(), n, d});
    return rows;
  };
  const std::vector<float> q = source(g)(layer, head, kQueryRows, t);
  std::vector<double> scores;
  std::vector<std::vector<float>> values;
  for (const PageView& page : list.pages) {
    const std::vector<float> k = rows_of(page.k, plan.k.transform, page.n_tokens);
    const std::vector<float> v = rows_of(page.v, plan.v.transform, page.n_tokens);
    for (int i = 0; i < page.n_tokens; ++i) {
      if (!page.is_protected && (page.masked.test(i) || page.first_token + i < first)) continue;
      scores.push_back(testing::dot(q.data(), k.data() + i * d, d) * g.softmax_scale);
      values.emplace_back(v.begin() + i * d, v.begin() + (i + 1) * d);
    }
  }
  const std::vector<double> weights = testing::softmax_in_double(scores);
  std::vector<double> out(d, 0.0);
  for (std::size_t j = 0; j < weights.size(); ++j) {
    for (int c = 0; c < d; ++c) out[c] += weights[j] * values[j][c];
  }
  return out;
}

// The outputs of recipes with fewer than 2 bits must have at least the cosine kLeastCosine. Outputs of zeros
// have none.
constexpr double kLeastCosine = 0.3;

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double product = 0, a_power = 0, b_power = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    product += a[i] * b[i];
    a_power += a[i] * a[i];
    b_power += b[i] * b[i];
  }
  return product / std::sqrt(a_power * b_power);
}

constexpr int kProbes[] = {0, 131, 263, 390, 400, 401, 402};  // tokens

const std::vector<double>& plain_probes(const Geometry& g) {
  static std::map<std::pair<int, bool>, std::vector<double>> by_size;
  std::vector<double>& probes = by_size[{g.head_dim, g.heads_differ()}];
  if (!probes.empty()) return probes;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (const int t : kProbes) {
      for (int head = 0; head < g.n_heads; ++head) {
        const auto row = plain_attention(g, layer, head, t);
        probes.insert(probes.end(), row.begin(), row.end());
      }
    }
  }
  return probes;
}

void append(Outputs& all, const Outputs& more) {
  all.resize(more.size());
  for (std::size_t layer = 0; layer < more.size(); ++layer) {
    all[layer].insert(all[layer].end(), more[layer].begin(), more[layer].end());
  }
}

class Life {
 public:
  // `backend` has placed the plan and outlives this object.
  Life(const PlacedPlan& plan, AttentionBackend& backend)
      : recipe_(label(plan->recipe)),
        geometry_(plan->geometry),
        source_(source(geometry_)),
        cache_(plan, 0),
        other_cache_(plan, 0),
        backend_(backend) {}

  void run() {
    const SequenceId s = cache_.add();
    const Outputs first = run_all(s);
    expect_near_plain(first);
    expect_attention_to_what_is_stored(first, s);
    const std::string contents = testing::contents(cache_, s);
    fork_and_abort(s);
    truncate(s);
    go_on_from_a_prefix(first);
    export_and_import(s);
    // From an empty sequence, the run must give equal outputs and contents again.
    ASSERT_TRUE(cache_.truncate(s, 0).ok()) << recipe_;
    EXPECT_EQ(run_all(s), first) << recipe_;
    EXPECT_EQ(testing::contents(cache_, s), contents) << recipe_;
    cache_.free(s);
    EXPECT_EQ(cache_.bytes().all(), 0) << recipe_;
  }

  // An image that is cut short anywhere, or one of whose first numbers is changed, is refused or is a
  // sequence of this plan.
  void refuse_damaged_images() {
    const SequenceId s = cache_.add();
    attend(s, 300, true);
    const auto image = cache_.export_sequence(s);
    if (!image.ok()) return expect_no_image(image.error());
    const std::int64_t held = cache_.page_bytes_in_use();
    for (std::size_t n = 0; n < image->size(); n += 1 + n / 7)
      EXPECT_FALSE(cache_.import_sequence(std::span(*image).first(n)).ok()) << recipe_ << ", " << n;
    std::vector<std::byte> longer = *image;
    longer.push_back({});
    EXPECT_FALSE(cache_.import_sequence(longer).ok()) << recipe_;
    constexpr std::size_t kShapeAndLength = 24;  // bytes
    for (std::size_t at = 0; at < 600; ++at) {
      for (const int flip : {1, 0x80}) {
        std::vector<std::byte> damaged = *image;
        damaged[at] ^= static_cast<std::byte>(flip);
        const auto imported = cache_.import_sequence(damaged);
        EXPECT_FALSE(imported.ok() && at < kShapeAndLength) << recipe_ << ", " << at;
        if (imported.ok()) cache_.free(*imported);
      }
    }
    EXPECT_EQ(cache_.page_bytes_in_use(), held) << recipe_;
  }

  // A checkpoint restores a correction's sums even if pages were sealed later. The test requires that no
  // layer slides, because a window frees pages that a cut would need.
  void return_to_a_checkpoint() {
    const SequenceId s = cache_.add();
    for (const int n : kChunks) attend(s, n, true);
    ASSERT_TRUE(cache_.checkpoint(s).ok()) << recipe_;
    const std::string before = testing::contents(cache_, s);
    for (const bool seals : {false, true}) {
      attend(s, seals ? 200 : 20, true);
      const bool cuts_page = cache_.pages(s).n_sealed() * kPageTokens > kPrompt;
      const bool possible = !cuts_page || cache_.plan().recipe.evict == 0;
      ASSERT_EQ(cache_.truncate(s, kPrompt).ok(), possible) << recipe_;
      if (seals) break;  // A page that is opened again keeps its rounding.
      EXPECT_EQ(testing::contents(cache_, s), before) << recipe_;
    }
    attend(s, 1, false);
  }

 private:
  Outputs attend(SequenceId s, int n, bool is_prompt) {
    Outputs out = attend_tokens(cache_, s, n, is_prompt, source_, backend_);
    for (const auto& layer : out) {
      const bool finite = std::all_of(layer.begin(), layer.end(), [](float x) { return std::isfinite(x); });
      EXPECT_TRUE(finite) << recipe_;
    }
    return out;
  }

  Outputs run_all(SequenceId s) {
    Outputs out;
    for (const int n : kChunks) append(out, attend(s, n, true));
    for (int i = 0; i < kDecoded; ++i) append(out, attend(s, 1, false));
    EXPECT_EQ(cache_.length(s), kPrompt + kDecoded);
    return out;
  }

  // Returns the fewest bits in which a side of a head is sealed.
  double fewest_bits() const {
    double bits = 16;
    for (const HeadPlan& head : cache_.plan().heads) {
      for (const Side side : kSides)
        bits = std::min(bits, head.side(side).sealed->bits(head.side(side).context.head_dim));
    }
    return bits;
  }

  void expect_near_plain(const Outputs& out) const {
    // Arbitrary adapters correct nothing, and evicted tokens are missing; eviction_test.cc checks eviction.
    if (cache_.plan().recipe.correction != Correction::none || cache_.plan().recipe.evict > 0) return;
    std::vector<double> probes;
    for (int layer = 0; layer < geometry_.n_layers; ++layer) {
      for (const int t : kProbes) {
        const float* row = testing::output_row(out[layer], geometry_, 0, t, 0, layer);
        probes.insert(probes.end(), row, row + geometry_.n_heads * geometry_.dim(layer));
      }
    }
    const double error = testing::relative_error(probes, plain_probes(geometry_));
    if (fewest_bits() >= 2) {
      EXPECT_LT(error, 0.05 + 0.75 * std::exp2(-fewest_bits())) << recipe_;
      // The error may be as large as the output, so only the direction is checked.
    } else {
      EXPECT_GT(cosine(probes, plain_probes(geometry_)), kLeastCosine) << recipe_;
    }
  }

  // The last token's outputs must be attention to what the cache has stored, however coarse the format is.
  void expect_attention_to_what_is_stored(const Outputs& out, SequenceId s) const {
    if (cache_.plan().recipe.correction != Correction::none) return;
    const int t = kPrompt + kDecoded - 1;
    std::vector<double> got, right;
    for (int layer = 0; layer < geometry_.n_layers; ++layer) {
      const float* row = testing::output_row(out[layer], geometry_, 0, t, 0, layer);
      got.insert(got.end(), row, row + geometry_.n_heads * geometry_.dim(layer));
      for (int head = 0; head < geometry_.n_heads; ++head) {
        const std::vector<double> stored = stored_attention(geometry_, cache_, s, layer, head, t);
        right.insert(right.end(), stored.begin(), stored.end());
      }
    }
    // A device multiplies rounded queries by codes, and keeps codebooks in half precision
    // (device/cpu/decode_test.cc has what each format loses by that).
    const Recipe& recipe = cache_.plan().recipe;
    const double allowed = recipe.products == Products::integer ? 0.03
                           : cache_.placed().on_device()        ? 0.02
                           : recipe.softmax != Softmax::exact   ? 0.002
                                                                : 1e-5;
    EXPECT_LT(testing::relative_error(got, right), allowed) << recipe_;
  }

  void fork_and_abort(SequenceId s) {
    const std::string before = testing::contents(cache_, s);
    const std::int64_t bytes = cache_.bytes(s).all();
    const auto fork = cache_.fork(s);
    ASSERT_TRUE(fork.ok()) << recipe_;
    {
      auto step = cache_.reserve({{*fork, 130, true}});
      ASSERT_TRUE(step.ok()) << recipe_;
      testing::run_step(**step, source_, backend_);
    }
    EXPECT_EQ(testing::contents(cache_, *fork), before) << recipe_ << ": an abort";
    EXPECT_EQ(cache_.bytes(*fork).all(), bytes) << recipe_ << ": an abort";
    attend(*fork, 130, true);
    EXPECT_EQ(testing::contents(cache_, s), before) << recipe_ << ": a fork";
    cache_.free(*fork);
  }

  // Truncates into the tail and into a sealed page. Only a correction and eviction refuse to truncate a
  // sealed page.
  void truncate(SequenceId s) {
    for (const int cut : {401, 300}) {
      const auto fork = cache_.fork(s);
      ASSERT_TRUE(fork.ok()) << recipe_;
      const std::string before = testing::contents(cache_, s);
      const int sealed = cache_.pages(s).n_sealed() * kPageTokens;
      const Recipe& recipe = cache_.plan().recipe;
      const bool possible = cut >= sealed || (recipe.correction == Correction::none && recipe.evict == 0);
      const Status status = cache_.truncate(*fork, cut);
      EXPECT_EQ(status.ok(), possible) << recipe_ << ": " << (status.ok() ? "" : status.error().message);
      EXPECT_EQ(testing::contents(cache_, *fork) == before, !possible) << recipe_;
      if (possible) {
        EXPECT_EQ(cache_.length(*fork), cut);
        attend(*fork, 60, true);
        attend(*fork, 1, false);
        EXPECT_EQ(cache_.length(*fork), cut + 61);
      }
      EXPECT_EQ(testing::contents(cache_, s), before) << recipe_ << ": a cut in a fork";
      cache_.free(*fork);
    }
  }

  // A sequence that continues another sequence's prompt gets the bits of a sequence that has read the prompt
  // itself.
  void go_on_from_a_prefix(const Outputs& whole) {
    const SequenceId prompt = cache_.add();
    for (const int n : kChunks) attend(prompt, n, true);
    const SequenceId hit = cache_.fork(prompt).value();
    for (int i = 0; i < kDecoded; ++i) {
      const Outputs out = attend(hit, 1, false);
      for (int layer = 0; layer < geometry_.n_layers; ++layer) {
        const float* expected = testing::output_row(whole[layer], geometry_, 0, kPrompt + i, 0, layer);
        EXPECT_TRUE(std::equal(out[layer].begin(), out[layer].end(), expected)) << recipe_ << ": a prefix";
      }
    }
    cache_.free(prompt);
    cache_.free(hit);
  }

  // An imported sequence equals the exported sequence, and continues with equal bits.
  void export_and_import(SequenceId s) {
    const auto image = cache_.export_sequence(s);
    if (!image.ok()) return expect_no_image(image.error());
    const auto read = other_cache_.import_sequence(*image);
    ASSERT_TRUE(read.ok()) << recipe_ << ": " << read.error().message;
    EXPECT_EQ(other_cache_.export_sequence(*read).value(), *image) << recipe_;
    EXPECT_EQ(testing::contents(other_cache_, *read), testing::contents(cache_, s)) << recipe_;
    const SequenceId fork = cache_.fork(s).value();
    for (const int n : {1, 130, 1}) {
      const Outputs expected = attend(fork, n, n > 1);
      EXPECT_EQ(attend_tokens(other_cache_, *read, n, n > 1, source_, backend_), expected)
          << recipe_ << ": an import";
    }
    EXPECT_EQ(testing::contents(other_cache_, *read), testing::contents(cache_, fork)) << recipe_;
    cache_.free(fork);
    other_cache_.free(*read);
    EXPECT_EQ(other_cache_.page_bytes_in_use(), 0) << recipe_;
  }

  // A device cannot tell unquantized sink tokens from other unquantized tokens, so it exports no such
  // sequence.
  void expect_no_image(const Error& error) const {
    EXPECT_TRUE(cache_.plan().recipe.sink > 0) << recipe_;
    EXPECT_NE(error.message.find("sink=0"), std::string::npos) << error.message;
  }

  std::string recipe_;
  Geometry geometry_;
  testing::RowSource source_;
  Cache cache_, other_cache_;
  AttentionBackend& backend_;
};

// Describes a place where caches lie and attention runs.
struct MatrixPlace {
  const char* name;
  std::unique_ptr<AttentionBackend> (*backend)();
};

std::unique_ptr<AttentionBackend> on_a_device() {
  return make_device_backend(std::make_shared<testing::HostPages>());
}

constexpr MatrixPlace kMatrixPlaces[] = {{"reference", make_reference_backend}, {"device", on_a_device}};

class RecipeMatrix : public ::testing::TestWithParam<std::tuple<MatrixPlace, std::string>> {
 protected:
  // A place that refuses a recipe must say why in a sentence.
  void live(const Geometry& geometry, void (Life::*life)()) {
    const auto& [place, recipe] = GetParam();
    const auto backend = place.backend();
    const auto plan = backend->place(plan_for(recipe, geometry));
    if (!plan.ok()) {
      EXPECT_GT(plan.error().message.size(), 20U);
      GTEST_SKIP() << plan.error().message;
    }
    Life on_plan(*plan, *backend);
    (on_plan.*life)();
  }
};

TEST_P(RecipeMatrix, LivesThroughEveryOperation) {
  live(geometry(64), &Life::run);
}

TEST_P(RecipeMatrix, DoesSoWhereLayersDiffer) {
  live(testing::unlike_layers(64, 128, 2, 1), &Life::run);
}

TEST_P(RecipeMatrix, RefusesDamagedImages) {
  live(geometry(64), &Life::refuse_damaged_images);
}

TEST_P(RecipeMatrix, ReturnsToACheckpoint) {
  live(small_geometry(64, 4, 2, 2), &Life::return_to_a_checkpoint);
}

// Adds evictions that no product recipe has.
std::vector<std::string> matrix_recipes() {
  std::vector<std::string> names = testing::product_recipes();
  names.emplace_back("k=ch4g128,v=tok4g128,window=128,evict=0.5,sink=4");
  names.emplace_back("k=ch4g128,v=tok4g128,window=128,evict=1,sink=4");
  return names;
}

INSTANTIATE_TEST_SUITE_P(EveryPlace, RecipeMatrix,
                         ::testing::Combine(::testing::ValuesIn(kMatrixPlaces),
                                            ::testing::ValuesIn(matrix_recipes())),
                         [](const auto& info) {
                           std::string name =
                               std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
                           std::ranges::replace_if(
                               name, [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

const char* const kFeatures[] = {
    "sink=4",
    "window=128",
    "prefill=256",
    "prefill=all",
    "protect=0.05",
    "skip=1e-6",
    "softmax=sas",
    "correction=relative",
    "mix=0.5,mix_k=prog3,mix_v=prog3",
    "evict=0.5",
    "prompt=int8,prefill=all",
    "prompt=sage",
};

// Returns whether a plan refuses the features a and b together; plan_test.cc tests the refusals.
bool is_refused(std::string_view a, std::string_view b) {
  return (a.starts_with("correction") && b.starts_with("evict")) ||
         (a.ends_with("products=integer") && b.starts_with("prompt"));
}

class FeaturePairs : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Formats, FeaturePairs,
                         ::testing::Values("k=ch4g128,v=tok4g128",
                                           "k=hadamard:tok4g32s,v=rhadamard:lm4,tail=fp8",
                                           "k=prog4,v=prog4,tail=int8,products=integer",
                                           "k=smooth+mean:vq-d4b8,v=nvq-d4b8"));

TEST_P(FeaturePairs, LiveThroughEveryOperation) {
  const auto backend = make_reference_backend();
  for (const char* const* a = std::begin(kFeatures); a != std::end(kFeatures); ++a) {
    for (const char* const* b = a + 1; b != std::end(kFeatures); ++b) {
      // The two features set one key.
      if (std::string(*a).substr(0, 7) == std::string(*b).substr(0, 7)) continue;
      if (is_refused(*a, *b) || is_refused(GetParam(), *b)) continue;
      if (testing::kEmulated && (b - a) % 4 != 1) continue;
      Life(plan_for(fmt::format("{},{},{}", GetParam(), *a, *b), geometry(32)), *backend).run();
    }
  }
}

}  // namespace
}  // namespace kvant::recipe_matrix_test
