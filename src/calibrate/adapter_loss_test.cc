#include "calibrate/adapter_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "calibrate/adam.h"
#include "calibrate/adapter_start.h"
#include "calibrate/adapter_training.h"
#include "calibrate/device_adapter_losses.h"
#include "model/device_machine.h"

namespace kvant {
namespace {

constexpr int kDim = 8;
constexpr int kKeys = 30;
constexpr int kQueries = 5;
constexpr int kHeads = 2;
constexpr int kFeatures = 12;

std::vector<float> normal_values(std::size_t n, float spread, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// Returns a context with random keys and queries. Stored keys differ from exact ones by `errors`. Query i
// attends to kKeys - kQueries + i + 1 keys.
AdapterContext random_context(std::uint32_t seed, float c) {
  std::mt19937 random(seed);
  AdapterContext context;
  context.head_dim = kDim;
  context.n = kKeys;
  context.m = kQueries;
  context.errors = normal_values(kKeys * kDim, 0.5F, random);
  context.queries = normal_values(kHeads * kQueries * kDim, 1.0F, random);
  const std::vector<float> keys = normal_values(kKeys * kDim, 1.0F, random);
  for (int i = 0; i < kQueries; ++i) {
    context.first.push_back(2);
    context.end.push_back(15 + i);
  }
  for (int r = 0; r < kHeads * kQueries; ++r) {
    std::vector<double> exact(kKeys), stored(kKeys);
    double sum = 0;
    for (int t = 0; t <= kKeys - kQueries + r % kQueries; ++t) {
      double score = 0;
      double error = 0;
      for (int j = 0; j < kDim; ++j) {
        score += static_cast<double>(context.queries[r * kDim + j]) * keys[t * kDim + j];
        error += static_cast<double>(context.queries[r * kDim + j]) * context.errors[t * kDim + j];
      }
      exact[t] = std::exp(score);
      stored[t] = std::exp(score - error);
      sum += exact[t];
    }
    for (int t = 0; t < kKeys; ++t) {
      context.targets.push_back(static_cast<float>(exact[t] / sum));
      context.exponentials.push_back(static_cast<float>(stored[t]));
    }
    context.scale.push_back(c);
  }
  return context;
}

AdapterWeights random_weights(std::uint32_t seed) {
  std::mt19937 random(seed);
  return {normal_values(kDim * kFeatures, 0.5F, random),
          normal_values(kHeads * kDim * kFeatures, 0.5F, random)};
}

// Returns phi of one row in double precision.
std::vector<double> features_by_hand(const float* x, const float* weights) {
  constexpr int kHalf = kFeatures / 2;
  std::vector<double> features(kFeatures);
  for (int part = 0; part < 2; ++part) {
    double sum = 0;
    for (int f = 0; f < kHalf; ++f) {
      double y = 0;
      for (int j = 0; j < kDim; ++j) y += static_cast<double>(x[j]) * weights[(part * kDim + j) * kHalf + f];
      sum += features[part * kHalf + f] = std::exp(y);
    }
    for (int f = 0; f < kHalf; ++f) features[part * kHalf + f] /= sum;
  }
  return features;
}

double loss_by_hand(const AdapterContext& context, const AdapterWeights& weights) {
  double loss = 0;
  for (int r = 0; r < kHeads * kQueries; ++r) {
    const auto phi_q =
        features_by_hand(&context.queries[r * kDim], &weights.query[r / kQueries * kDim * kFeatures]);
    std::vector<double> w(kKeys);
    double sum = 0;
    for (int t = 0; t < kKeys; ++t) {
      w[t] = context.exponentials[r * kKeys + t];
      if (t >= context.first[r % kQueries] && t < context.end[r % kQueries]) {
        const auto phi_k = features_by_hand(&context.errors[t * kDim], weights.key.data());
        double dot = 0;
        for (int f = 0; f < kFeatures; ++f) dot += phi_q[f] * phi_k[f];
        w[t] += context.scale[r] * dot;
      }
      sum += w[t];
    }
    for (int t = 0; t < kKeys; ++t) {
      const double target = context.targets[r * kKeys + t];
      if (target > 0) loss += target * std::log(target * sum / w[t]);
    }
  }
  return loss / (kHeads * kQueries);
}

TEST(AdapterLoss, IsTheDivergenceOfTheCorrectedWeights) {
  const AdapterContext context = random_context(1, 0.7F);
  const AdapterWeights weights = random_weights(2);
  EXPECT_NEAR(adapter_loss(context, weights, kFeatures, nullptr), loss_by_hand(context, weights), 1e-5);
}

TEST(AdapterLoss, WithoutCorrectionIsThatOfScaleZero) {
  const AdapterContext context = random_context(1, 0.0F);
  EXPECT_NEAR(uncorrected_loss(context), loss_by_hand(context, random_weights(2)), 1e-5);
}

TEST(AdapterLoss, GradientMatchesFiniteDifferences) {
  const AdapterContext context = random_context(3, 0.7F);
  AdapterWeights weights = random_weights(4);
  AdapterWeights gradient;
  adapter_loss(context, weights, kFeatures, &gradient);
  constexpr double kStep = 1e-3;
  for (auto [values, slopes] : {std::pair{&weights.key, &gradient.key}, {&weights.query, &gradient.query}}) {
    ASSERT_EQ(values->size(), slopes->size());
    for (std::size_t i = 0; i < values->size(); ++i) {
      const float kept = (*values)[i];
      (*values)[i] = static_cast<float>(kept + kStep);
      const double above = loss_by_hand(context, weights);
      const double reached = (*values)[i];
      (*values)[i] = static_cast<float>(kept - kStep);
      const double below = loss_by_hand(context, weights);
      const double slope = (above - below) / (reached - (*values)[i]);
      EXPECT_NEAR((*slopes)[i], slope, 1e-5 + 1e-3 * std::abs(slope)) << i;
      (*values)[i] = kept;
    }
  }
}

// Returns the norm of the difference relative to the norm of the expected values.
double distance(const std::vector<float>& got, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  EXPECT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{got[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

// A GPU multiplies in TF32, so its tolerance is larger.
TEST(AdapterLosses, OnADeviceAreThoseOfTheCpu) {
  std::vector<AdapterContext> contexts{random_context(1, 0.7F), random_context(2, 0.4F),
                                       random_context(3, 0.7F)};
  // The third context has no errors after its last corrected key, as in adapter_contexts().
  contexts[2].errors.resize(std::size_t{1} * contexts[2].end.back() * kDim);
  const AdapterWeights weights = random_weights(4);
  const auto host = make_host_adapter_losses(contexts, kFeatures).value();
  for (const testing::Place& place : testing::kPlaces) {
    SCOPED_TRACE(place.name);
    const std::shared_ptr<ComputeDevice> device = testing::device_at(place);
    if (device == nullptr) continue;
    const double tolerance = place.name == std::string("host") ? 1e-4 : 1e-2;
    const auto made = make_device_adapter_losses(*device, contexts, kFeatures);
    ASSERT_TRUE(made.ok()) << made.error().message;
    for (const std::vector<std::size_t>& of : {std::vector<std::size_t>{0}, {2, 1, 2}}) {
      AdapterWeights expected, got;
      const double loss = host->mean(of, weights, &expected).value();
      EXPECT_NEAR((*made)->mean(of, weights, nullptr).value(), loss, tolerance * loss);
      EXPECT_NEAR((*made)->mean(of, weights, &got).value(), loss, tolerance * loss);
      EXPECT_LT(distance(got.key, expected.key), tolerance);
      EXPECT_LT(distance(got.query, expected.query), tolerance);
    }
  }
}

TEST(AdapterTraining, OnADeviceGivesTheWeightsOfTheCpu) {
  std::vector<AdapterContext> training;
  for (int i = 0; i < 6; ++i) training.push_back(random_context(10 + i, 0.7F));
  const std::vector<AdapterContext> judged{training[0], training[3]};
  const AdapterOptions options{.features = kFeatures, .max_steps = 80, .groups = 2, .seed = 1};
  const TrainedAdapters expected = train_adapters(training, judged, kHeads, options);
  ASSERT_TRUE(expected.helps);
  for (const testing::Place& place : testing::kPlaces) {
    SCOPED_TRACE(place.name);
    const std::shared_ptr<ComputeDevice> device = testing::device_at(place);
    if (device == nullptr) continue;
    const TrainedAdapters trained = AdapterDevice(*device).train(training, judged, kHeads, options);
    EXPECT_TRUE(trained.helps);
    EXPECT_NEAR(trained.loss_after, expected.loss_after, 0.05 * expected.loss_after);
    if (place.name == std::string("host")) {
      EXPECT_LT(distance(trained.weights.key, expected.weights.key), 0.01);
    }
  }
}

// The function is f = x^2 - 2 x. Adam's first step has the length of the learning rate, whatever the slope
// (Kingma and Ba, section 2.1).
TEST(Adam, FindsTheMinimumInStepsOfItsRate) {
  std::vector<float> x{5.0F};
  Adam adam(1, 0.1F);
  adam.step({2 * x[0] - 2}, x);
  EXPECT_NEAR(x[0], 4.9F, 1e-6);
  for (int i = 0; i < 500; ++i) adam.step({2 * x[0] - 2}, x);
  EXPECT_NEAR(x[0], 1.0F, 0.02);
}

TEST(AdapterTraining, LowersTheLossAndRepeatsItself) {
  std::vector<AdapterContext> training;
  for (int i = 0; i < 6; ++i) training.push_back(random_context(10 + i, 0.7F));
  const std::vector<AdapterContext> judged{training[0], training[3]};
  const AdapterOptions options{.features = kFeatures, .max_steps = 200, .seed = 1};
  const TrainedAdapters trained = train_adapters(training, judged, kHeads, options);
  EXPECT_TRUE(trained.helps);
  EXPECT_LT(trained.loss_after, trained.loss_before);
  EXPECT_NEAR(trained.loss_before, (uncorrected_loss(judged[0]) + uncorrected_loss(judged[1])) / 2, 1e-9);
  double loss = 0;
  for (const AdapterContext& context : judged) loss += loss_by_hand(context, trained.weights) / 2;
  EXPECT_NEAR(trained.loss_after, loss, 1e-5);
  EXPECT_EQ(train_adapters(training, judged, kHeads, options).weights.key, trained.weights.key);
}

// With equal contexts, a step of several contexts has the gradient of one.
TEST(AdapterTraining, AveragesTheGradientsOfAStep) {
  const std::vector<AdapterContext> training(6, random_context(10, 0.7F));
  const auto weights = [&](int groups) {
    return train_adapters(training, training, kHeads,
                          {.features = kFeatures, .max_steps = 40, .groups = groups, .seed = 1})
        .weights;
  };
  const AdapterWeights one = weights(1), four = weights(4);
  ASSERT_FALSE(one.key.empty());
  ASSERT_EQ(four.key.size(), one.key.size());
  for (std::size_t i = 0; i < one.key.size(); ++i) EXPECT_NEAR(four.key[i], one.key[i], 1e-3) << i;
}

// Contexts beyond kMostJudgedQueries do not choose the weights, so they decide whether the weights help.
TEST(AdapterTraining, LetsOtherContextsDecideWhetherTheWeightsHelp) {
  std::vector<AdapterContext> training, judged;
  for (int i = 0; i < 4; ++i) training.push_back(random_context(10 + i, 0.7F));
  for (int i = 0; i < kMostJudgedQueries / kQueries; ++i) judged.push_back(training[i % 4]);
  const AdapterOptions options{.features = kFeatures, .max_steps = 200, .seed = 1};
  const TrainedAdapters with_few = train_adapters(training, judged, kHeads, options);
  ASSERT_TRUE(with_few.helps);
  // Every second context now has exact keys, which any correction makes worse.
  std::vector<AdapterContext> mixed;
  for (const AdapterContext& context : judged) {
    mixed.push_back(context);
    mixed.back().exponentials = mixed.back().targets;
    mixed.push_back(context);
  }
  const TrainedAdapters with_many = train_adapters(training, mixed, kHeads, options);
  EXPECT_EQ(with_many.weights.key, with_few.weights.key);
  EXPECT_FALSE(with_many.helps);
  EXPECT_NEAR(with_many.loss_before, 0, 1e-6);
  EXPECT_EQ(with_many.loss_after, with_many.loss_before);
}

// The keys are stored exactly, so any correction of their weights is wrong, and `helps` must be false.
TEST(AdapterTraining, SaysWhereNoCorrectionHelps) {
  std::vector<AdapterContext> contexts;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(random_context(10 + i, 0.7F));
    contexts.back().exponentials = contexts.back().targets;
  }
  const TrainedAdapters trained = train_adapters(std::span(contexts).first(3), std::span(contexts).last(1),
                                                 kHeads, {.features = kFeatures, .seed = 1});
  EXPECT_FALSE(trained.helps);
  EXPECT_NEAR(trained.loss_before, 0, 1e-6);
  EXPECT_EQ(trained.loss_after, trained.loss_before);
}

// Counts the steps of a training.
class CountedSteps final : public AdapterLosses {
 public:
  CountedSteps(std::unique_ptr<AdapterLosses> losses, int& steps)
      : losses_(std::move(losses)), steps_(steps) {}
  Result<double> mean(std::span<const std::size_t> contexts, const AdapterWeights& weights,
                      AdapterWeights* gradient) override {
    steps_ += gradient != nullptr;
    return losses_->mean(contexts, weights, gradient);
  }

 private:
  std::unique_ptr<AdapterLosses> losses_;
  int& steps_;
};

// Nothing helps exact keys, so the training ends after three judgements, 40 steps apart, unless all steps
// must run.
TEST(AdapterTraining, RunsAllStepsUnlessItEndsEarly) {
  AdapterContext exact = random_context(10, 0.7F);
  exact.exponentials = exact.targets;
  const std::vector<AdapterContext> contexts{exact};
  for (const bool ends_early : {true, false}) {
    int steps = 0;
    const auto trained = train_adapters(
        contexts, contexts, kHeads,
        {.features = kFeatures, .max_steps = 200, .ends_early = ends_early, .seed = 1},
        [&](std::span<const AdapterContext> of, int features) -> Result<std::unique_ptr<AdapterLosses>> {
          std::unique_ptr<AdapterLosses> counted =
              std::make_unique<CountedSteps>(make_host_adapter_losses(of, features).value(), steps);
          return counted;
        });
    EXPECT_FALSE(trained->helps);
    EXPECT_EQ(steps, ends_early ? 120 : 200);
  }
}

// The weights of the smallest loss are kept, however many steps follow.
TEST(AdapterTraining, KeepsTheBestWeights) {
  std::vector<AdapterContext> training;
  for (int i = 0; i < 6; ++i) training.push_back(random_context(10 + i, 0.7F));
  const std::vector<AdapterContext> judged{random_context(30, 0.7F)};
  AdapterOptions options{.features = kFeatures, .max_steps = 40, .ends_early = false, .seed = 1};
  double smallest = train_adapters(training, judged, kHeads, options).loss_after;
  for (const int steps : {80, 200, 400}) {
    options.max_steps = steps;
    const double loss = train_adapters(training, judged, kHeads, options).loss_after;
    EXPECT_LE(loss, smallest) << steps;
    smallest = loss;
  }
}

TEST(AdapterStart, CorrectsNextToNothing) {
  const std::vector<AdapterContext> contexts{random_context(20, 0.7F), random_context(21, 0.7F)};
  const auto losses = make_host_adapter_losses(contexts, kFeatures).value();
  const auto start_of = [&](std::uint64_t seed) {
    return quiet_start(contexts, kHeads, kFeatures, seed, *losses).value();
  };
  const AdapterWeights start = start_of(3);
  EXPECT_LT(loss_by_hand(contexts[0], start), 1.021 * uncorrected_loss(contexts[0]));
  EXPECT_EQ(start.key, start_of(3).key);
  EXPECT_NE(start.key, start_of(4).key);
}

}  // namespace
}  // namespace kvant
