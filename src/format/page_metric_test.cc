#include "format/page_metric.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "format/test_pages.h"

namespace kvant {
namespace {

constexpr int kDim = 64;

// Returns the pairs of channels that rotate together. The kinds are RoPE's layouts NEOX ("neox") and NORM,
// and a head with only half of its channels rotated ("partial"). The slowest pairs take 10^4 to 10^6 tokens
// for a whole turn.
std::vector<ChannelTurn> turns_of(const std::string& kind) {
  const int n = kind == "partial" ? kDim / 4 : kDim / 2;
  std::vector<ChannelTurn> turns;
  for (int i = 0; i < n; ++i) {
    const double whole = std::pow(1e6, -static_cast<double>(i) / n) / (2 * std::numbers::pi);
    const int first = kind == "norm" ? 2 * i : i;
    turns.push_back(
        {first, kind == "norm" ? first + 1 : i + n, static_cast<std::uint64_t>(std::ldexp(whole, 64))});
  }
  return turns;
}

// Computes R(position) x by the definition of RoPE.
std::vector<double> turned(const std::vector<double>& x, const std::vector<ChannelTurn>& turns,
                           double position) {
  std::vector<double> y = x;
  for (const ChannelTurn& turn : turns) {
    const double angle = 2 * std::numbers::pi * std::ldexp(static_cast<double>(turn.step), -64) * position;
    y[turn.first] = x[turn.first] * std::cos(angle) - x[turn.second] * std::sin(angle);
    y[turn.second] = x[turn.second] * std::cos(angle) + x[turn.first] * std::sin(angle);
  }
  return y;
}

// For an error of the page, the page's metric must give the same cost as the directions after the error is
// rotated back to the frame of the page's middle. The test covers positions, pairings of channels and
// transforms.
TEST(PageMetric, CountsErrorsInTheFrameOfThePagesMiddle) {
  const std::vector<float> directions = normal_numbers(std::size_t{kDim} * kMetricRank, 1);
  for (const std::string kind : {"neox", "norm", "partial"}) {
    const std::vector<ChannelTurn> turns = turns_of(kind);
    Constants constants;
    constants.set(0, 0, Side::key, kPageMetric, page_metric_constant(directions, turns, kDim));
    constants.set(0, 0, Side::key, "smooth", std::vector<float>(kDim, 0.5F));
    const HeadConstants of_head{&constants, 0, 0, Side::key};
    for (const std::vector<std::string>& steps :
         {std::vector<std::string>{}, {"hadamard"}, {"smooth", "hadamard"}}) {
      const auto transform = Transform::make(steps, kDim, of_head);
      ASSERT_TRUE(transform.ok());
      for (const int page : {0, 1, 63, 1023}) {
        const auto metric = metric_of_page(of_head, *transform, kDim, page * kPageTokens);
        ASSERT_TRUE(metric.has_value());
        std::vector<float> error = normal_numbers(kDim, 2 + page);
        // `error` is the error of the encoded values, and `of_key` is the error that it causes in the key.
        std::vector<float> of_key = error;
        transform->inverse({of_key.data(), 1, kDim});
        const int middle = page * kPageTokens + kPageTokens / 2;
        const std::vector<double> back = turned({of_key.begin(), of_key.end()}, turns, -middle);
        double expected = 0;
        for (const float e : error) expected += double{e} * e;
        for (int r = 0; r < kMetricRank; ++r) {
          double along = 0;
          for (int i = 0; i < kDim; ++i) along += back[i] * directions[i * kMetricRank + r];
          expected += along * along;
        }
        EXPECT_NEAR(metric->product(error.data(), error.data()), expected, 2e-3 * expected)
            << kind << " " << page;
      }
    }
  }
}

TEST(PageMetric, IsNothingWhereNoQueriesAreKnown) {
  const Constants none;
  EXPECT_FALSE(metric_of_page({&none, 0, 0, Side::key}, Transform{}, kDim, 0).has_value());
  EXPECT_FALSE(metric_of_page({}, Transform{}, kDim, 0).has_value());
}

// A page is encoded with the metric of its position, and only formats that shape errors use the metric.
TEST(PageMetric, ShapesThePageThatItIsOf) {
  Constants constants;
  const std::vector<float> directions = normal_numbers(std::size_t{kDim} * kMetricRank, 3);
  constants.set(0, 0, Side::key, kPageMetric, page_metric_constant(directions, turns_of("neox"), kDim));
  const PageContext context{kDim, {&constants, 0, 0, Side::key}};
  const std::vector<float> values = normal_numbers(std::size_t{kPageTokens} * kDim, 4);
  const auto encoded = [&](const char* name, int position) {
    const Format& format = *find_format(name);
    std::vector<std::byte> page(format.page_bytes(kDim));
    encode_page(format, Transform{}, context, position, {}, values.data(), page.data());
    return page;
  };
  const auto in_metric = [&](int position) {
    const auto metric = metric_of_page(context.constants, Transform{}, kDim, position);
    PageContext shaped = context;
    shaped.metric = &*metric;
    const Format& format = *find_format("tcq2");
    std::vector<std::byte> page(format.page_bytes(kDim));
    format.encode(values.data(), {}, shaped, page.data());
    return page;
  };
  EXPECT_EQ(encoded("tcq2", 128), in_metric(128));
  EXPECT_NE(encoded("tcq2", 128), encoded("tcq2", 8192));
  EXPECT_EQ(encoded("ch4g64", 128), encoded("ch4g64", 8192));
}

}  // namespace
}  // namespace kvant
