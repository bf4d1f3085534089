#include "compact/sequence_coder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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

// Pairs of channels turn, some not at all.
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
  auto read = read_predictor(*plan, bytes);  // as from a file
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

INSTANTIATE_TEST_SUITE_P(ProductRecipes, CodedSequence,
                         ::testing::ValuesIn(testing::product_recipes()));
INSTANTIATE_TEST_SUITE_P(
    OtherRecipes, CodedSequence,
    ::testing::Values("k=hadamard:tcq1,v=tcq6,k@1=hadamard:tcq5", "k=tcq2,v=tok4g32,v@0.1=tcq4,window=128",
                      "k=hadamard:tcq3,v=hadamard:tcq2,protect=0.05,window=128",
                      "k=hadamard:tcq3,v=hadamard:tcq3,evict=0.6"));

// Two layers of which one is a rotation of the other but for a little noise.
struct Related {
  std::shared_ptr<const Plan> plan;
  std::vector<std::byte> operator()(int n_tokens, unsigned seed) const {
    const Geometry& g = plan->geometry;
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int done = 0; done < n_tokens; done += 64) {
      auto step = cache.reserve({{s, 64, true}});
      EXPECT_TRUE(step.ok());
      std::vector<float> hidden(64UL * g.head_dim);
      for (float& x : hidden) x = normal(random);
      std::vector<float> scratch;
      for (int layer = 0; layer < g.n_layers; ++layer) {
        for (int h = 0; h < g.n_kv_heads; ++h) {
          std::vector<float> rows[2];
          for (std::vector<float>& side : rows) {
            side.resize(hidden.size());
            const int shift = static_cast<int>(&side - rows) * 7 + h * 3 + layer;
            for (int t = 0; t < 64; ++t)
              for (int c = 0; c < g.head_dim; ++c)
                side[t * g.head_dim + c] =
                    hidden[t * g.head_dim + (c + shift) % g.head_dim] + 0.1F * normal(random);
          }
          HeadState& head = (*step)->head(0, layer, h);
          head.seal_until(done / kPageTokens, scratch);
          head.append({rows[0].data(), 64, g.head_dim}, {rows[1].data(), 64, g.head_dim});
        }
      }
      for (int layer = 0; layer < g.n_layers; ++layer)
        for (int h = 0; h < g.n_kv_heads; ++h)
          (*step)->head(0, layer, h).seal_until((done + 64) / kPageTokens, scratch);
      EXPECT_TRUE((*step)->commit().ok());
    }
    return std::move(*cache.export_sequence(s));
  }
};

TEST(SequenceCoder, SavesWhatLayersSayOfEachOther) {
  const Related related{testing::plan_for("k=tcq3,v=tcq3", testing::small_geometry(64, 2, 2, 4))};
  const auto learned = learn_predictor(*related.plan, {{related(4096, 1)}, std::vector<std::vector<ChannelTurn>>(4)}, 1);
  ASSERT_TRUE(learned.ok());
  const SequenceCoder coder(related.plan, *learned);
  const auto sequence = related(1024, 2);
  expect_round_trip(coder, sequence);
  // All but the first layer's K is known but for noise of a tenth, and the quantizer's: of 3 bits a half.
  EXPECT_LT(static_cast<double>(coder.encode(sequence, 1).size()), 0.6 * static_cast<double>(sequence.size()));
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
  EXPECT_NE(decoded.error().message.find("another predictor"), std::string::npos) << decoded.error().message;
}

// Pages may hold anything: what a session's file says is only checked against damage.
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
  for (int i = 0; i < 20; ++i) {  // and so may coded entries: no answer is right, but there is one
    std::vector<std::byte> coded(1 + random() % 20000), entry(coder.entry_bytes());
    for (std::byte& x : coded) x = static_cast<std::byte>(random());
    coded[0] = std::byte{1};
    std::fill_n(coded.begin() + std::min<std::size_t>(coded.size(), 1), std::min<std::size_t>(12, coded.size() - 1),
                std::byte{0});
    (void)coder.decode(i, coded, entry.data());
  }
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
  EXPECT_EQ((*runs)[1].first_page, 2);  // before token 351 nothing is seen
  EXPECT_EQ((*runs)[1].n_pages, 1);
  EXPECT_FALSE(sealed_runs(*plan, std::span(sequence).first(20), sequence.size()).has_value());
  EXPECT_FALSE(sealed_runs(*plan, sequence, 3000).has_value());
}

}  // namespace
}  // namespace kvant
