#include "compact/sequence_coder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/checksum.h"
#include "cache/cache_fixture.h"
#include "cache/sealed_runs.h"
#include "compact/entry_coder.h"
#include "compact/learn_predictor.h"
#include "recipe/recipe_fixture.h"

namespace kvant {
namespace {

std::vector<std::byte> sequence_of(Cache& cache, int n) {
  const SequenceId s = cache.add();
  EXPECT_TRUE(testing::append_tokens(cache, s, n).ok());
  auto bytes = cache.export_sequence(s);
  EXPECT_TRUE(bytes.ok());
  cache.free(s);
  return std::move(*bytes);
}

// Some pairs of channels rotate, and others do not.
std::vector<std::vector<ChannelTurn>> some_turns(const Geometry& g) {
  std::vector<std::vector<ChannelTurn>> turns(g.n_layers);
  for (int layer = 0; layer < g.n_layers; ++layer)
    for (int i = 0; i < g.dim(layer) / 4; ++i)
      turns[layer].push_back({2 * i, 2 * i + 1, (std::uint64_t{1} << 61) >> i});
  return turns;
}

SequenceCoder learned_coder(const std::shared_ptr<const Plan>& plan, std::vector<std::byte> sequence) {
  const PredictorText text{{std::move(sequence)}, some_turns(plan->geometry)};
  auto learned = learn_predictor(*plan, text, 2);
  EXPECT_TRUE(learned.ok());
  const auto bytes = write_predictor(*plan, *learned);
  auto read = read_predictor(*plan, bytes);  // The bytes are read as from a file.
  EXPECT_TRUE(read.ok() && read->checksum == learned->checksum);
  return SequenceCoder(plan, std::move(*read));
}

void expect_round_trip(const SequenceCoder& coder, const std::vector<std::byte>& sequence) {
  const auto coded = coder.encode(sequence, 2);
  EXPECT_EQ(coded, coder.encode(sequence, 1));
  const auto decoded = coder.decode(coded, 2);
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_TRUE(std::ranges::equal(decoded->bytes(), sequence));
}

class CodedSequence : public ::testing::TestWithParam<std::string> {};

TEST_P(CodedSequence, IsGivenBackByteForByte) {
  for (const Geometry& g : {testing::small_geometry(64), testing::unlike_layers()}) {
    const Recipe recipe = parse_recipe(GetParam()).value();
    if (!check_recipe(recipe, g).ok()) continue;
    const auto plan = testing::plan_for(GetParam(), g);
    Cache cache(plan, 0);
    const auto sequence = sequence_of(cache, 700);
    const SequenceCoder coder = learned_coder(plan, sequence_of(cache, 600));
    expect_round_trip(coder, sequence);
    for (const int n : {1, 128, 300}) expect_round_trip(coder, sequence_of(cache, n));
  }
}

INSTANTIATE_TEST_SUITE_P(ProductRecipes, CodedSequence, ::testing::ValuesIn(testing::product_recipes()));
INSTANTIATE_TEST_SUITE_P(OtherRecipes, CodedSequence,
                         ::testing::Values("k=hadamard:tcq1,v=tcq6,k@1=hadamard:tcq5",
                                           "k=tcq2,v=tok4g32,v@0.1=tcq4,window=128",
                                           "k=hadamard:tcq3,v=hadamard:tcq2,protect=0.05,window=128",
                                           "k=hadamard:tcq3,v=hadamard:tcq3,evict=0.6"));

// Draws nearly normal values of deviation 1 as a sum of integers, so they are the same everywhere.
float drawn(std::mt19937& random) {
  int sum = -2046;
  for (int i = 0; i < 4; ++i) sum += static_cast<int>(random() % 1024);
  return static_cast<float>(sum) / 512;
}

// Makes sequences in which every layer and side is one hidden row, shifted by some channels, with a little
// noise.
struct Related {
  std::shared_ptr<const Plan> plan;
  static int moved_by(int layer, int h, Side side) { return (side == Side::value ? 7 : 0) + h * 3 + layer; }

  std::vector<std::byte> operator()(int n_tokens, unsigned seed) const {
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    std::mt19937 random(seed);
    for (int done = 0; done < n_tokens; done += kPageTokens) add_page(cache, s, random);
    return *cache.export_sequence(s);
  }
  void add_page(Cache& cache, SequenceId s, std::mt19937& random) const {
    const int d = plan->geometry.head_dim;
    auto step = cache.reserve({{s, kPageTokens, true}});
    ASSERT_TRUE(step.ok());
    std::vector<float> hidden(static_cast<std::size_t>(kPageTokens) * d), scratch;
    for (float& x : hidden) x = drawn(random);
    for (int layer = 0; layer < plan->geometry.n_layers; ++layer) {
      for (int h = 0; h < plan->geometry.n_kv_heads; ++h) {
        std::vector<float> rows[2];
        for (const Side side : kSides) {
          std::vector<float>& to = rows[static_cast<int>(side)];
          for (int t = 0; t < kPageTokens; ++t)
            for (int c = 0; c < d; ++c)
              to.push_back(hidden[t * d + (c + moved_by(layer, h, side)) % d] + drawn(random) / 8);
          plan->head(layer, h).side(side).transform.forward({to.data(), kPageTokens, d});
        }
        HeadState& head = head_of(**step, 0, layer, h);
        head.append({rows[0].data(), kPageTokens, d}, {rows[1].data(), kPageTokens, d});
        head.seal_until(head.length() / kPageTokens, scratch);
      }
    }
    ASSERT_TRUE((*step)->commit().ok());
  }
};

TEST(SequenceCoder, SavesWhatLayersSayOfEachOther) {
  const Related related{testing::plan_for("k=tcq3,v=tcq3", testing::small_geometry(64, 2, 2, 4))};
  const auto learned =
      learn_predictor(*related.plan, {{related(4096, 1)}, std::vector<std::vector<ChannelTurn>>(4)}, 1);
  ASSERT_TRUE(learned.ok());
  const SequenceCoder coder(related.plan, *learned);
  const auto sequence = related(1024, 2);
  expect_round_trip(coder, sequence);
  // All but the first layer's K is predictable. Noise of a tenth and the quantizer's error remain, which take
  // about half of the 3 bits.
  EXPECT_LT(static_cast<double>(coder.encode(sequence, 1).size()),
            0.6 * static_cast<double>(sequence.size()));
}

struct CodedExample {
  std::shared_ptr<const Plan> plan = testing::plan_for("kvant-3bit", testing::small_geometry(64));
  Cache cache{plan, 0};
  std::vector<std::byte> sequence = sequence_of(cache, 400);
  SequenceCoder coder = learned_coder(plan, sequence);
  std::vector<std::byte> coded = coder.encode(sequence, 1);
};

TEST(SequenceCoder, RefusesWhatIsDamagedOrCutShort) {
  CodedExample example;
  const auto refused = [&](std::span<const std::byte> bytes) {
    const auto decoded = example.coder.decode(bytes, 1);
    return !decoded.ok() && !decoded.error().message.empty();
  };
  for (std::size_t n = 0; n < example.coded.size(); n += n < 200 ? 1 : 997)
    EXPECT_TRUE(refused(std::span(example.coded).first(n))) << n;
  std::mt19937 random(1);
  for (int i = 0; i < 150; ++i) {
    auto bytes = example.coded;
    const std::size_t at = i < 60 ? static_cast<std::size_t>(i) : random() % bytes.size();
    bytes[at] ^= static_cast<std::byte>(1U << (random() % 8));
    EXPECT_TRUE(refused(bytes)) << at;
  }
  auto longer = example.coded;
  longer.push_back({});
  EXPECT_TRUE(refused(longer));
}

TEST(SequenceCoder, NamesAPredictorThatIsNotIts) {
  CodedExample example;
  const SequenceCoder other = learned_coder(example.plan, sequence_of(example.cache, 256));
  const auto decoded = other.decode(example.coded, 1);
  ASSERT_FALSE(decoded.ok());
  EXPECT_NE(decoded.error().message.find("a different predictor"), std::string::npos)
      << decoded.error().message;
}

// Pages may hold anything, because a session file is only checked for damage.
TEST(EntryCoder, TakesAnyBytes) {
  CodedExample example;
  const PredictorText text{{example.sequence}, some_turns(example.plan->geometry)};
  const auto predictor = learn_predictor(*example.plan, text, 1);
  EntryCoder coder(*example.plan, *predictor, {0, 1});
  std::mt19937 random(2);
  for (const unsigned mask : {0xffU, 0x00U, 0x80U, 0x7fU}) {
    std::vector<std::byte> entry(coder.entry_bytes());
    for (std::byte& x : entry) x = static_cast<std::byte>(mask == 0x7f ? 0xff : random() & mask);
    const auto coded = coder.encode(3, entry);
    EXPECT_LE(coded.size(), entry.size() + 1);
    std::vector<std::byte> decoded(entry.size());
    ASSERT_TRUE(coder.decode(3, coded, decoded.data()));
    EXPECT_EQ(decoded, entry);
  }
  // Coded entries may also hold anything. The result is then arbitrary, but decoding must return.
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> coded(1 + random() % 20000), entry(coder.entry_bytes());
    for (std::byte& x : coded) x = static_cast<std::byte>(random());
    coded[0] = std::byte{1};
    std::fill_n(coded.begin() + std::min<std::size_t>(coded.size(), 1),
                std::min<std::size_t>(12, coded.size() - 1), std::byte{0});
    (void)coder.decode(i, coded, entry.data());
  }
}

// Makes a predictor for related sequences of two layers with integer arithmetic only.
Predictor exact_predictor(const Plan& plan) {
  const Geometry& g = plan.geometry;
  const int d = g.head_dim, channels = g.n_kv_heads * d;
  Predictor predictor;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    LayerPredictor& of_layer = predictor.layers.emplace_back();
    of_layer.exponents[0] = of_layer.exponents[1] = 12;
    for (const Side side : kSides) {
      for (int h = 0; h < g.n_kv_heads; ++h) {
        HeadPredictor& head = (side == Side::key ? of_layer.k : of_layer.v).emplace_back();
        const int n = head_inputs(g, layer - 1, layer, h, side).n();
        head.weights.resize(static_cast<std::size_t>(d) * n);
        for (int c = 0; c < d; ++c) {
          head.offsets.push_back(c);
          head.multipliers.push_back((16 << kMultiplierBits) / 127);
          head.deviations.push_back(layer > 0 ? 1500 : 4500);
          const int from = (side == Side::value ? channels : 0) + h * d + (c + 1) % d;
          if (layer > 0) head.weights[static_cast<std::size_t>(c) * n + from] = 127;
          for (int j = 0; j < d; ++j)
            head.follow.push_back(static_cast<std::int16_t>(j > c ? (c * 7 + j * 5) % 300 : 0));
        }
        head.usual_gain = 4000;
      }
    }
  }
  return predictor;
}

// Files are read on other machines, so no instruction set or compiler may change the numbers.
TEST(EntryCoder, WritesTheSameBytesEverywhere) {
  const Related related{
      testing::plan_for("k=hadamard:tcq3,v=hadamard:tcq4", testing::small_geometry(64, 2, 2, 2))};
  const auto sequence = related(256, 3);
  const Predictor predictor = exact_predictor(*related.plan);
  EntryCoder coder(*related.plan, predictor, {0, 1});
  const auto runs = sealed_runs(*related.plan, sequence, sequence.size());
  ASSERT_TRUE(runs && runs->front().n_pages > 0);
  const auto entry = std::span(sequence).subspan(runs->front().first, coder.entry_bytes());
  EXPECT_EQ(checksum(entry), 6052247082620009364U);  // the page format's result
  const auto coded = coder.encode(0, entry);
  ASSERT_EQ(coded.front(), std::byte{1});
  EXPECT_LT(coded.size(), 0.85 * static_cast<double>(entry.size()));
  EXPECT_EQ(checksum(coded), 17345118317415878987U);
}

TEST(PageTurns, AreTurnsAndTheSameEverywhere) {
  constexpr int kD = 16;
  const std::vector<ChannelTurn> turns = {{0, 1, 0x2000000000000000}, {2, 9, 0x0123456789abcdef}};
  std::vector<std::int32_t> x(kPageTokens * kD, 10000);
  PageTurns page;
  page.prepare(turns, 128 * 5);  // 80 whole turns of the first pair
  page.turn(x.data(), kD);
  EXPECT_NEAR(x[0], 10000, 2);
  EXPECT_NEAR(x[kD], 0, 2);  // (1, 1) turned by an eighth
  EXPECT_NEAR(x[kD + 1], 14142, 2);
  EXPECT_EQ(x[3], 10000);
  std::uint64_t hash = 0;
  for (const std::int32_t value : x) hash = (hash ^ static_cast<std::uint32_t>(value)) * 0x100000001b3;
  EXPECT_EQ(hash, 9193702721524786087U);
  page.turn_back(x.data(), kD);
  for (const std::int32_t value : x) ASSERT_NEAR(value, 10000, 3);
}

TEST(Predictor, RefusesOtherBytes) {
  CodedExample example;
  const PredictorText text{{example.sequence}, some_turns(example.plan->geometry)};
  const auto bytes = write_predictor(*example.plan, *learn_predictor(*example.plan, text, 1));
  EXPECT_TRUE(read_predictor(*example.plan, bytes).ok());
  EXPECT_FALSE(read_predictor(*testing::plan_for("kvant-3bit", testing::small_geometry(32)), bytes).ok());
  EXPECT_FALSE(read_predictor(*testing::plan_for("q8_0", testing::small_geometry(64)), bytes).ok());
  for (std::size_t n = 0; n < bytes.size(); n += 1 + bytes.size() / 50)
    EXPECT_FALSE(read_predictor(*example.plan, std::span(bytes).first(n)).ok());
  EXPECT_FALSE(learn_predictor(*example.plan, {{sequence_of(example.cache, 100)}, text.turns}, 1).ok());
}

TEST(SealedRuns, LieWhereTheEntriesAre) {
  const auto plan = testing::plan_for("k=tcq3,v=tcq3", testing::unlike_layers());
  Cache cache(plan, 0);
  const auto sequence = sequence_of(cache, 500);
  const auto runs = sealed_runs(*plan, sequence, sequence.size());
  ASSERT_TRUE(runs.has_value());
  ASSERT_EQ(runs->size(), 2U);
  EXPECT_EQ((*runs)[0].n_pages, 3);
  EXPECT_EQ((*runs)[1].first_page, 2);  // No token before 351 is visible, so older pages are freed.
  EXPECT_EQ((*runs)[1].n_pages, 1);
  EXPECT_FALSE(sealed_runs(*plan, std::span(sequence).first(20), sequence.size()).has_value());
  EXPECT_FALSE(sealed_runs(*plan, sequence, 3000).has_value());
}

}  // namespace
}  // namespace kvant
