#include "recipe/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "recipe/constant_needs.h"
#include "recipe/head_mix.h"
#include "recipe/stand_in_constants.h"

namespace kvant {
namespace {

Geometry small_geometry() {
  Geometry geometry;
  geometry.model = "the test model";
  geometry.n_layers = 4;
  geometry.n_heads = 6;
  geometry.n_kv_heads = 2;
  geometry.head_dim = 64;
  geometry.softmax_scale = 0.125F;
  geometry.trained_context = 2048;
  geometry.sliding_window.assign(4, 0);
  return geometry;
}

Result<std::shared_ptr<const Plan>> try_resolve(const std::string& recipe, const Geometry& geometry,
                                                std::shared_ptr<const Constants> constants = nullptr) {
  auto parsed = parse_recipe(recipe);
  EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  return resolve(*parsed, geometry, std::move(constants));
}

std::shared_ptr<const Plan> resolved(const std::string& recipe, const Geometry& geometry,
                                     std::shared_ptr<const Constants> constants = nullptr) {
  auto plan = try_resolve(recipe, geometry, std::move(constants));
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  return plan.ok() ? *plan : nullptr;
}

std::string message_of(const std::string& recipe, const Geometry& geometry,
                       std::shared_ptr<const Constants> constants = nullptr) {
  const auto plan = try_resolve(recipe, geometry, std::move(constants));
  EXPECT_FALSE(plan.ok());
  return plan.ok() ? "" : plan.error().message;
}

void expect_in(const std::string& part, const std::string& whole) {
  EXPECT_NE(whole.find(part), std::string::npos) << "'" << part << "' is not in: " << whole;
}

// Returns an array [d] called `name` for every layer, head and side.
std::shared_ptr<const Constants> constants_everywhere(const Geometry& geometry, const std::string& name) {
  auto constants = std::make_shared<Constants>();
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int head = 0; head < geometry.n_kv_heads; ++head) {
      for (Side side : kSides) {
        constants->set(layer, head, side, name, std::vector<float>(geometry.head_dim, 2.0F));
      }
    }
  }
  return constants;
}

// Returns a plausible constant: 0.5 in every place, or the unit matrix for a rotation.
std::vector<float> plausible(const ConstantNeed& need, int head_dim) {
  const bool square = need.step != nullptr && need.size > static_cast<std::size_t>(head_dim);
  std::vector<float> values(need.size, square ? 0.0F : 0.5F);
  for (std::size_t i = 0; square && i < need.size; i += head_dim + 1) values[i] = 1.0F;
  return values;
}

// Returns all constants that the recipe needs.
std::shared_ptr<Constants> constants_of(const Recipe& recipe, const Geometry& geometry) {
  auto constants = std::make_shared<Constants>();
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int head = 0; head < geometry.n_kv_heads; ++head) {
      for (Side side : kSides) {
        for (const ConstantNeed& need : constant_needs(recipe, geometry, layer, head, side))
          constants->set(layer, head, side, need.name, plausible(need, geometry.head_dim));
      }
    }
  }
  return constants;
}

std::shared_ptr<Constants> constants_of(const std::string& text, const Geometry& geometry) {
  return constants_of(*parse_recipe(text), geometry);
}

TEST(Resolve, GivesEveryHeadItsFormatsAndContext) {
  const auto plan = resolved("kivi-4bit", small_geometry());
  ASSERT_EQ(plan->heads.size(), 8U);
  ASSERT_EQ(plan->layers.size(), 4U);
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(plan->layers[layer].window, 128);
    for (int head = 0; head < 2; ++head) {
      for (Side side : kSides) {
        const SidePlan& of_side = plan->head(layer, head).side(side);
        EXPECT_EQ(of_side.sealed, find_format(side == Side::key ? "ch4g128" : "tok4g128"));
        EXPECT_TRUE(of_side.transform.identity());
        EXPECT_EQ(of_side.context.head_dim, 64);
        EXPECT_EQ(of_side.context.constants.layer, layer);
        EXPECT_EQ(of_side.context.constants.kv_head, head);
        EXPECT_EQ(of_side.context.constants.side, side);
      }
    }
  }
}

TEST(Resolve, AcceptsEveryBuiltinRecipe) {
  for (int d : {64, 80, 96, 128, 256, 512}) {
    Geometry geometry = small_geometry();
    // Some recipes name the two first and last layers.
    geometry.n_layers = 2;
    geometry.head_dim = d;
    geometry.sliding_window.assign(2, 0);
    for (const Recipe& recipe : builtin_recipes()) {
      const auto constants = constants_of(recipe, geometry);
      const auto plan = resolve(recipe, geometry, constants);
      EXPECT_TRUE(plan.ok()) << plan.error().message;
      const auto uncalibrated = resolve(recipe, geometry, nullptr);
      EXPECT_EQ(uncalibrated.ok(), constants->empty() || recipe.budget > 0) << recipe.name;
      if (!uncalibrated.ok()) expect_in("kvant calibrate", uncalibrated.error().message);
    }
  }
}

TEST(Resolve, LetsLaterOverridesWin) {
  const auto plan =
      resolved("k=ch4g128,v=fp8,k@0-2=bf16,k@1=tok4g128,k@1-3.1=fp8,v@3.0=hadamard:f16", small_geometry());
  const auto format = [&](int layer, int head, Side side) {
    return plan->head(layer, head).side(side).sealed->name();
  };
  EXPECT_EQ(format(0, 0, Side::key), "bf16");
  EXPECT_EQ(format(0, 1, Side::key), "bf16");
  EXPECT_EQ(format(1, 0, Side::key), "tok4g128");
  EXPECT_EQ(format(1, 1, Side::key), "fp8");
  EXPECT_EQ(format(2, 0, Side::key), "bf16");
  EXPECT_EQ(format(2, 1, Side::key), "fp8");
  EXPECT_EQ(format(3, 0, Side::key), "ch4g128");
  EXPECT_EQ(format(3, 1, Side::key), "fp8");
  EXPECT_EQ(format(2, 0, Side::value), "fp8");
  EXPECT_EQ(format(3, 0, Side::value), "f16");
  EXPECT_EQ(plan->head(3, 0).v.transform_names, std::vector<std::string>{"hadamard"});
  EXPECT_FALSE(plan->head(3, 0).v.transform.identity());
  EXPECT_TRUE(plan->head(3, 1).v.transform.identity());
}

TEST(Resolve, KeepsTheTailInTheFormatOfAPlainCache) {
  const Geometry geometry = small_geometry();
  EXPECT_EQ(resolved("f16", geometry)->tail->name(), "f16");
  EXPECT_EQ(resolved("bf16", geometry)->tail->name(), "bf16");
  EXPECT_EQ(resolved("f16/bf16", geometry)->tail->name(), "bf16");
  EXPECT_EQ(resolved("f16,v@2.1=fp8", geometry)->tail->name(), "bf16");
  EXPECT_EQ(resolved("fp8", geometry)->tail->name(), "bf16");
  EXPECT_EQ(resolved("kivi-2bit", geometry)->tail->name(), "bf16");
}

TEST(Resolve, KeepsNoSinkWhereAWindowSlides) {
  Geometry geometry = small_geometry();
  geometry.sliding_window = {0, 512, 0, 512};
  const auto plan = resolved("kivi-2bit,sink=4", geometry);
  EXPECT_EQ(plan->layers[0].sink, 4);
  EXPECT_EQ(plan->layers[1].sink, 0);
  EXPECT_EQ(plan->layers[1].sliding_window, 512);
  EXPECT_EQ(plan->layers[2].sink, 4);
  EXPECT_EQ(plan->layers[3].window, 128);
}

TEST(Resolve, WantsOffsetsOnlyWhereAShiftMeetsASoftcap) {
  Geometry geometry = small_geometry();
  const auto constants = constants_everywhere(geometry, "mean");
  EXPECT_FALSE(resolved("k=mean:fp8", geometry, constants)->layers[0].needs_offset);
  geometry.score_softcap = 50;
  EXPECT_TRUE(resolved("k=mean:fp8", geometry, constants)->layers[0].needs_offset);
  EXPECT_FALSE(resolved("k=hadamard:fp8", geometry, constants)->layers[0].needs_offset);
  EXPECT_FALSE(resolved("v=mean:fp8", geometry, constants)->layers[0].needs_offset);
  const auto one_layer = resolved("k@2.1=mean:fp8", geometry, constants);
  EXPECT_FALSE(one_layer->layers[1].needs_offset);
  EXPECT_TRUE(one_layer->layers[2].needs_offset);
}

TEST(Resolve, FindsConstantsUnderTheNamesOfAllStepsBefore) {
  const Geometry geometry = small_geometry();
  const auto constants = constants_everywhere(geometry, "hadamard+smooth");
  EXPECT_TRUE(try_resolve("k=hadamard+smooth:fp8", geometry, constants).ok());
  expect_in("'smooth'", message_of("k=smooth:fp8", geometry, constants));
}

TEST(Resolve, SaysHowToGetMissingConstants) {
  const std::string message = message_of("k=bf16,v@1.1=smooth:tok4g128", small_geometry());
  expect_in("layer 1 KV head 1 V has no calibrated constants 'smooth'", message);
  expect_in("kvant calibrate", message);
  expect_in("v@1.1=smooth:tok4g128", message);
}

TEST(Resolve, GivesHeadsOfLowPriorityOtherFormats) {
  const Geometry geometry = small_geometry();
  const std::string recipe = "k=hadamard:prog4,v=prog4,mix=0.5,mix_k=prog2,mix_v=prog3,v@3=fp8";
  const auto constants = constants_of(recipe, geometry);
  constants->set(1, 0, Side::key, head_priority_constant("gap-std"), {7.0F});
  const auto plan = resolved(recipe, geometry, constants);
  const auto format = [&](int layer, int head, Side side) {
    return plan->head(layer, head).side(side).sealed->name();
  };
  EXPECT_EQ(format(0, 0, Side::key), "prog2");
  EXPECT_EQ(format(0, 0, Side::value), "prog3");
  EXPECT_EQ(format(0, 1, Side::key), "prog4");
  EXPECT_EQ(format(1, 0, Side::key), "prog4");
  EXPECT_EQ(format(1, 1, Side::key), "prog2");
  EXPECT_EQ(format(3, 0, Side::key), "prog2");
  EXPECT_EQ(format(3, 0, Side::value), "fp8");
  EXPECT_EQ(plan->head(0, 0).k.transform_names, std::vector<std::string>{"hadamard"});
  expect_in("'priority/gap-std': run `kvant calibrate`", message_of(recipe, geometry));
  expect_in("neither mix_k nor mix_v", message_of("prog4,mix=0.5", geometry));
}

TEST(Resolve, TakesTheTailThatTheRecipeNames) {
  const Geometry geometry = small_geometry();
  EXPECT_EQ(resolved("kivi-2bit,tail=tok8g32s", geometry)->tail->name(), "tok8g32s");
  EXPECT_EQ(resolved("bf16,tail=f16", geometry)->tail->name(), "f16");
}

TEST(Resolve, ProtectsTokensWhereNoWindowSlides) {
  Geometry geometry = small_geometry();
  geometry.sliding_window = {0, 512, 0, 512};
  const auto plan = resolved("kivi-2bit,protect=0.05", geometry);
  EXPECT_EQ(plan->layers[0].protect, 0.05);
  EXPECT_EQ(plan->layers[1].protect, 0);
  EXPECT_EQ(plan->layers[2].protect, 0.05);
}

TEST(Resolve, EvictsTokensWhereNoWindowSlidesAndNothingIsSummedUp) {
  Geometry geometry = small_geometry();
  geometry.sliding_window = {0, 512, 0, 512};
  const auto plan = resolved("kivi-2bit,evict=0.5", geometry);
  EXPECT_EQ(plan->layers[0].evict, 0.5);
  EXPECT_EQ(plan->layers[1].evict, 0);
  EXPECT_TRUE(plan->layers[0].needs_scores());
  EXPECT_FALSE(resolved("kivi-2bit,evict=1", geometry)->layers[0].needs_scores());
  expect_in("evict=0.5 drops tokens that the correction cannot remove",
            message_of("kivi-2bit,evict=0.5,correction=relative", geometry));
  geometry.sliding_window.assign(4, 512);
  expect_in("evict=0.5 has no effect", message_of("kivi-2bit,evict=0.5", geometry));
}

TEST(Resolve, RefusesAPromptThatWouldRoundNothing) {
  const Geometry geometry = small_geometry();
  expect_in("prompt=int8 has no effect", message_of("bf16,prompt=int8,window=128", geometry));
  expect_in("prompt=int4 has no effect", message_of("bf16,prompt=int4,window=128,prefill=256", geometry));
  EXPECT_NE(resolved("bf16,prompt=int8,window=128,prefill=384", geometry), nullptr);
  EXPECT_NE(resolved("bf16,prompt=int8,window=128,prefill=all", geometry), nullptr);
  EXPECT_NE(resolved("bf16,prompt=int8", geometry), nullptr);
  EXPECT_NE(resolved("bf16,prompt=sage,window=128", geometry), nullptr);
  expect_in("already computes the attention of prompts in integers",
            message_of("turboattention-4bit,prompt=int8", geometry));
}

TEST(Resolve, MultipliesIntegersOnlyWhereAllFormatsHoldThem) {
  const Geometry geometry = small_geometry();
  expect_in("needs unsealed tokens in integers, not bf16", message_of("prog4,products=integer", geometry));
  for (const std::string& name : format_names()) {
    if (!find_format(name)->integral() || !find_format(name)->row_wise()) continue;
    const std::string with_tail = ",products=integer,tail=" + name;
    EXPECT_TRUE(try_resolve("prog4" + with_tail, geometry, constants_of("prog4" + with_tail, geometry)).ok());
    const std::string other = "prog4,v@2.1=ch4g128" + with_tail;
    expect_in("layer 2 KV head 1 V is ch4g128: use one of prog",
              message_of(other, geometry, constants_of(other, geometry)));
  }
}

TEST(Resolve, WantsAdaptersForACorrection) {
  const Geometry geometry = small_geometry();
  const std::string recipe = "kivi-2bit,correction=relative";
  expect_in("'adapter/q': run `kvant calibrate`", message_of(recipe, geometry));
  const auto constants = constants_of(recipe, geometry);
  EXPECT_NE(resolved(recipe, geometry, constants), nullptr);
  EXPECT_NE(resolved("kivi-2bit,correction=absolute", geometry, constants), nullptr);
  constants->set(2, 1, Side::key, kKeyAdapter, std::vector<float>(64));
  expect_in("the constants 'adapter/k' of layer 2 KV head 1 K are 64 numbers, not 16384",
            message_of(recipe, geometry, constants));
}

TEST(Resolve, LeavesOutTheCorrectionWhereCalibrationSwitchedItOff) {
  const Geometry geometry = small_geometry();
  const std::string recipe = "kivi-2bit,correction=relative,correction_layers=1-2";
  const auto constants = constants_of(recipe, geometry);
  for (const char* adapter : {kQueryAdapter, kKeyAdapter}) constants->set(2, 1, Side::key, adapter, {0.0F});
  const auto plan = resolved(recipe, geometry, constants);
  ASSERT_NE(plan, nullptr);
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int head = 0; head < geometry.n_kv_heads; ++head) {
      const bool corrected =
          (layer == 1 || layer == 2) && !geometry.slides(layer) && !(layer == 2 && head == 1);
      EXPECT_EQ(plan->head(layer, head).corrected, corrected) << layer << "." << head;
    }
  }
}

TEST(Resolve, ChecksTheLayersOfTheCorrection) {
  const Geometry geometry = small_geometry();
  expect_in("correction_layers names layer 4, but the test model has layers 0 to 3",
            message_of("kivi-2bit,correction=relative,correction_layers=2-4", geometry));
  expect_in("set correction to absolute or relative",
            message_of("kivi-2bit,correction_layers=0-1", geometry));
}

// No calibration can help this recipe, so it is refused before there are any constants.
TEST(Resolve, RefusesShiftedKeysUnderAnAbsoluteCorrection) {
  const Geometry geometry = small_geometry();
  expect_in("K of layer 1 has a transform that shifts",
            message_of("kivi-2bit,k@1.1=mean:ch2g128,correction=absolute", geometry));
  EXPECT_TRUE(
      check_recipe(*parse_recipe("kivi-2bit,k@1=mean:ch2g128,correction=absolute,correction_layers=0"),
                   geometry)
          .ok());
  const std::string recipe = "k=ch2g128,v=tok2g128,k@1.1=mean:ch2g128,correction=";
  const auto constants = constants_of(recipe + "relative", geometry);
  EXPECT_NE(resolved(recipe + "relative", geometry, constants), nullptr);
  expect_in("K of layer 1 has a transform that shifts", message_of(recipe + "absolute", geometry, constants));
  EXPECT_NE(resolved("k=ch2g128,v=tok2g128,correction=absolute", geometry, constants), nullptr);
}

TEST(Resolve, RefusesCodebooksOfAnotherSize) {
  const Geometry geometry = small_geometry();
  const auto constants = constants_of("vq-d4b8", geometry);
  EXPECT_NE(resolved("vq-d4b8", geometry, constants), nullptr);
  constants->set(0, 1, Side::value, "codebook/vq-d4b8", std::vector<float>(1000, 1.0F));
  expect_in("'codebook/vq-d4b8' of layer 0 KV head 1 V are 1000 numbers, not 1024",
            message_of("vq-d4b8", geometry, constants));
}

TEST(Resolve, RefusesLayersAndHeadsThatTheModelLacks) {
  expect_in("names layer 4, but the test model has layers 0 to 3", message_of("k@2-4=fp8", small_geometry()));
  expect_in("names KV head 2, but the test model has KV heads 0 to 1",
            message_of("v@0.2=fp8", small_geometry()));
}

TEST(Resolve, RefusesHeadSizesThatNoFormatHas) {
  Geometry geometry = small_geometry();
  for (int d : {0, 60, 520}) {
    geometry.head_dim = d;
    expect_in("head size", message_of("bf16", geometry));
  }
}

// For every format and every head_dim, resolve() must return a plan or an error sentence.
TEST(Resolve, AnswersForEveryFormatAtEveryHeadSize) {
  Geometry geometry = small_geometry();
  for (const std::string& name : format_names()) {
    for (int d = 2; d <= kMaxHeadDim; d += d < 32 ? 1 : 56) {
      geometry.head_dim = d;
      const Recipe recipe = *parse_recipe(fmt::format("k={0},v={0}", name));
      const bool has_pages = d % 8 == 0 && d >= find_format(name)->least_head_dim();
      const auto plan = resolve(recipe, geometry, d % 8 == 0 ? constants_of(recipe, geometry) : nullptr);
      EXPECT_EQ(plan.ok(), has_pages) << name << " " << d;
    }
  }
  geometry.head_dim = 8;
  expect_in("the format tcq4 needs heads of at least 16 channels", message_of("tcq4", geometry));
  geometry.head_dim = 16;
  EXPECT_NE(resolved("tcq4", geometry), nullptr);
}

TEST(Resolve, ChecksRecipesThatWereNotParsed) {
  Recipe recipe;
  recipe.window = 100;
  EXPECT_FALSE(resolve(recipe, small_geometry(), nullptr).ok());
  recipe.window = 0;
  recipe.k.format = "ch4g129";
  EXPECT_FALSE(resolve(recipe, small_geometry(), nullptr).ok());
}

TEST(Plan, OfKvantsRecipesNeedsNoCalibrationOnAnyModel) {
  for (const char* name : {"kvant-4bit", "kvant-3bit", "kvant-2bit"}) {
    const Recipe recipe = *parse_recipe(name);
    for (const int head_dim : {64, 80, 96, 112, 128, 256, 512}) {
      Geometry g;
      g.model = "any";
      g.n_layers = 2;
      g.n_heads = g.n_kv_heads = 3;
      g.head_dim = head_dim;
      g.softmax_scale = 0.1F;
      g.sliding_window = {0, 256};
      const auto plan = resolve(recipe, g, nullptr);
      ASSERT_TRUE(plan.ok()) << name << ": " << plan.error().message;
      EXPECT_EQ((*plan)->calibration, CalibrationState::missing);
      const Format* format = (*plan)->heads[0].k.sealed;
      EXPECT_LE(format->bits(head_dim), recipe.budget) << name;
      EXPECT_GT(format->bits(head_dim), recipe.budget - 1) << name;
      for (const HeadPlan& head : (*plan)->heads) {
        EXPECT_EQ(head.k.sealed, format);
        EXPECT_EQ(head.v.sealed, format);
        EXPECT_EQ(head.k.transform_names, std::vector<std::string>{"hadamard"});
      }
      EXPECT_EQ((*plan)->layers[0].sink, 4);
    }
  }
}

TEST(Plan, SaysWhetherItIsCalibrated) {
  Geometry g;
  g.model = "any";
  g.n_layers = 1;
  g.n_heads = g.n_kv_heads = 1;
  g.head_dim = 64;
  g.softmax_scale = 0.1F;
  g.sliding_window = {0};
  const auto state = [&](const char* text, bool constants) {
    const Recipe recipe = *parse_recipe(text);
    const auto plan = resolve(recipe, g, constants ? stand_in_constants(recipe, g) : nullptr);
    EXPECT_TRUE(plan.ok()) << text;
    return (*plan)->calibration;
  };
  EXPECT_EQ(state("kivi-2bit", false), CalibrationState::not_needed);
  EXPECT_EQ(state("kvant-2bit", false), CalibrationState::missing);
  EXPECT_EQ(state("kvant-2bit", true), CalibrationState::calibrated);
  EXPECT_EQ(state("vecinfer-2bit", true), CalibrationState::calibrated);
  EXPECT_EQ(state("k=tcq2,v=tcq2,encode=shaped", false), CalibrationState::missing);
  EXPECT_EQ(state("k=tcq2,v=tcq2,encode=shaped", true), CalibrationState::calibrated);
  EXPECT_EQ(state("k=tcq2,v=tcq2,encode=sampled", true), CalibrationState::calibrated);
  EXPECT_FALSE(resolve(*parse_recipe("k=tcq2,v=tcq2,encode=sampled"), g, nullptr).ok());
  EXPECT_EQ(state("k=tcq2,v=tcq2", false), CalibrationState::not_needed);
  EXPECT_FALSE(resolve(*parse_recipe("vecinfer-2bit"), g, nullptr).ok());
}

TEST(Resolve, GivesTheFirstAndLastLayersTheirOwnFormat) {
  Geometry geometry = small_geometry();
  geometry.n_layers = 7;
  geometry.sliding_window.assign(7, 0);
  const auto plan = resolved("k=hadamard:ch4g128,v=tok4g128,k@edge2=bf16,v@edge2=f16,v@6=fp8", geometry);
  for (int layer = 0; layer < 7; ++layer) {
    const bool at_edge = layer < 2 || layer > 4;
    const HeadPlan& head = plan->head(layer, 0);
    EXPECT_EQ(head.k.sealed->name(), at_edge ? "bf16" : "ch4g128") << layer;
    EXPECT_EQ(head.k.transform.identity(), at_edge) << layer;
    EXPECT_EQ(head.v.sealed->name(), layer == 6 ? "fp8" : at_edge ? "f16" : "tok4g128") << layer;
  }
  const auto all = resolved("k=ch4g128,v=tok4g128,k@edge4=bf16", geometry);
  for (int layer = 0; layer < 7; ++layer) EXPECT_EQ(all->head(layer, 0).k.sealed->name(), "bf16") << layer;
  const auto one_head = resolved("k=ch4g128,v=tok4g128,k@edge1.0=bf16", geometry);
  EXPECT_EQ(one_head->head(6, 0).k.sealed->name(), "bf16");
  EXPECT_EQ(one_head->head(6, 1).k.sealed->name(), "ch4g128");
  expect_in("names KV head 9", message_of("k=ch4g128,v=tok4g128,k@edge1.9=bf16", geometry));
  expect_in("k@edge8 names 8 layers at each end, but the test model has 7",
            message_of("k=ch4g128,v=tok4g128,k@edge8=bf16", geometry));
  EXPECT_EQ(to_string(*parse_recipe("k=ch4g128,v=fp8,k@edge2.1=bf16")), "k=ch4g128,v=fp8,k@edge2.1=bf16");
  for (const char* wrong : {"k@edge=bf16", "k@edge0=bf16", "k@edge-1=bf16", "k@edge1-2=bf16"})
    expect_in("does not name layers", parse_recipe(wrong).error().message);
}

// A recipe with a budget also needs sensitivities, which take a calibration of minutes.
TEST(Plan, RefusesASampledMetricWithABudgetOnly) {
  Geometry g = small_geometry();
  g.head_dim = 128;
  for (Recipe recipe : builtin_recipes()) {
    if (recipe.encode == Encode::plain && !check_recipe(recipe, g).ok()) continue;
    recipe.encode = Encode::sampled;
    const Status fits = check_recipe(recipe, g);
    EXPECT_EQ(fits.ok(), recipe.budget == 0) << recipe.name;
    if (recipe.budget > 0) expect_in("encode=sampled is for recipes without a budget", fits.error().message);
  }
}

TEST(Plan, RefusesWhatFollowsOneLayersQueriesWhereLayersShareACache) {
  Geometry geometry = small_geometry();
  geometry.shared = {false, false, false, true};
  resolved("kivi-2bit", geometry);
  for (const char* recipe : {"kivi-2bit,protect=0.05", "kivi-2bit,evict=0.5", "kvlinc-2bit"})
    expect_in("layers of the test model share one", message_of(recipe, geometry));
}

}  // namespace
}  // namespace kvant
