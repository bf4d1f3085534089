#include "cache/device_layout.h"

#include <gtest/gtest.h>

#include <string_view>

#include "cache/cache_fixture.h"
#include "cache/layer_groups.h"
#include "cache/testing/host_pages.h"

namespace kvant {
namespace {

Result<PlacedPlan> placed(const std::string& text, const Geometry& geometry = testing::small_geometry()) {
  const Recipe recipe = parse_recipe(text).value();
  const auto plan = resolve(recipe, geometry, testing::made_up_constants(recipe, geometry));
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
  return place_on(std::make_shared<testing::HostPages>(), *plan);
}

void expect_refused(const Result<PlacedPlan>& plan, const std::string& reason, const std::string& instead) {
  ASSERT_FALSE(plan.ok()) << reason;
  EXPECT_NE(plan.error().message.find(reason), std::string::npos) << plan.error().message;
  EXPECT_NE(plan.error().message.find(instead), std::string::npos) << plan.error().message;
}

TEST(PlaceOn, RefusesWhatTheLibraryLacksAndSaysTheNearestPlan) {
  EXPECT_TRUE(placed("vquant-k4v2").ok());
  EXPECT_TRUE(placed("vquant-k4v2,prompt=flashq").ok());
  EXPECT_TRUE(placed("kvlinc-2bit,k=tok2g64", testing::small_geometry(/*head_dim=*/64, 18)).ok());
  expect_refused(placed("kvlinc-2bit,prompt=flashq"), "in integers have neither",
                 "; use prompt=exact, or use --device cpu");
  expect_refused(placed("h2o-50"), "masks leave some out", "evict=0");
  expect_refused(placed("million-2bit"), "K in pq-d4b8", "use vq-d4b8 instead of pq-d4b8");
  expect_refused(placed("f16"), "K in f16", "; use bf16 on both sides, or use --device cpu");
  expect_refused(placed("k=bf16,v=tok4g64"), "K in bf16 and V in tok4g64", "instead of bf16, or");
  expect_refused(placed("bf16", testing::small_geometry(72)),
                 "2 KV heads of 72 channels, 3 query heads each: head_dim must be",
                 "; use --no-kv-offload, which computes attention on the CPU, or --device cpu");
}

// A plan may need several changes, and the message names only changes that are needed.
TEST(PlaceOn, NamesTheFewestChanges) {
  expect_refused(placed("million-2bit,evict=0.5"), "layer 0",
                 "; leave the eviction out with evict=0 and use vq-d4b8 instead of pq-d4b8, or");
  expect_refused(placed("vquant-k4v2,evict=0.5,prefill=all,prompt=int8"), "rounded attention",
                 "; use prompt=exact and leave the eviction out with evict=0, or");
}

// This library has few formats and few pairs of formats, as the library of a small device may.
kvant_status supports_little(const kvant_plan* plan, kvant_limits* limits) {
  const kvant_decode_shape& shape = *plan->shape;
  if (shape.head_key_formats != nullptr) return KVANT_UNSUPPORTED;
  for (const std::string_view format : {shape.key_format, shape.value_format})
    if (format != "bf16" && format != "tok3g128" && format != "tok8g32s") return KVANT_UNSUPPORTED;
  return kvant_supports(plan, limits);
}

TEST(PlaceOn, AsksTheLibraryForTheNearestFormats) {
  const auto device = std::make_shared<testing::HostPages>();
  device->functions().supports = supports_little;
  const auto plan_of = [](const std::string& recipe) {
    return resolve(parse_recipe(recipe).value(), testing::small_geometry(), nullptr).value();
  };
  EXPECT_TRUE(place_on(device, plan_of("k=tok8g32s,v=tok3g128")).ok());
  expect_refused(place_on(device, plan_of("k=ch8g64,v=ch3g128")), "K in ch8g64",
                 "; use tok3g128 instead of ch3g128 and tok8g32s instead of ch8g64, or");
  expect_refused(place_on(device, plan_of("k=tok8g32s,v=tok3g128,k@0.1=tok3g128")), "2 pairs of formats",
                 "; give all KV heads of a layer the same formats");
}

TEST(PlaceOn, HasRulesOfItsOwnForEveryLibrary) {
  expect_refused(placed("vquant-k4v2,k=bf16,v=bf16"), "tokens that are never quantized", "protect=0");
  expect_refused(placed("kvlinc-2bit,protect=0.05"), "protection by scores with a correction", "protect=0");
  expect_refused(placed("turboattention-paper"), "softmax=sas-paper", "softmax=sas");
  expect_refused(placed("vquant-k4v2,prefill=all,prompt=int8"), "rounded attention", "prompt=exact");
  expect_refused(placed("vquant-k4v2", testing::unlike_layers(128, 64)), "differ between layers",
                 "protect=0");
  expect_refused(placed("kvlinc-2bit", testing::unlike_layers(128, 64)), "differ between layers",
                 "correction=none");
}

TEST(PlaceOn, GivesTheReasonOfALibraryThatServesNothing) {
  const auto device = std::make_shared<testing::HostPages>();
  device->functions().supports = [](const kvant_plan*, kvant_limits*) { return KVANT_UNSUPPORTED; };
  device->functions().last_error = [] { return "groups have at most 8 query heads"; };
  const auto plan = resolve(parse_recipe("k=ch4g128,v=tok4g128").value(), testing::small_geometry(), nullptr);
  expect_refused(place_on(device, *plan), "K in ch4g128 and V in tok4g128",
                 ": groups have at most 8 query heads; use --no-kv-offload");
}

TEST(PlaceOn, TakesHeadsThatDifferBetweenLayersAndSharedCaches) {
  Geometry shared = testing::small_geometry();
  shared.shared = {true, false};
  for (const Geometry& g : {testing::small_geometry(512), testing::unlike_layers(512, 256, 1, 2),
                            testing::unlike_layers(64, 128), testing::unlike_layers(), shared}) {
    EXPECT_TRUE(placed("bf16", g).ok());
    EXPECT_TRUE(placed("kvant-4bit", g).ok());
    EXPECT_TRUE(placed("k=ch4g128,v=tok4g128", g).ok());
  }
}

TEST(PlaceOn, RefusesWhatNoLibraryDoesWithCapsAndSinkLogits) {
  Geometry sliding = testing::small_geometry();
  sliding.sliding_window[1] = 512;
  EXPECT_TRUE(placed("kvant-4bit", sliding).ok());
  EXPECT_TRUE(placed("bf16,prompt=flashq", sliding).ok());
  Geometry capped = testing::small_geometry();
  capped.score_softcap = 50;
  EXPECT_TRUE(placed("kvant-4bit", capped).ok());
  expect_refused(placed("bf16,prompt=flashq", capped), "neither soft-capped scores", "prompt=exact");
  expect_refused(placed("kvlinc-2bit", capped), "scores that are capped", "correction=none");
  Geometry sinking = testing::small_geometry();
  sinking.sink_logits.assign(static_cast<std::size_t>(sinking.n_layers) * sinking.n_heads, 0.5F);
  EXPECT_TRUE(placed("kvant-4bit", sinking).ok());
  expect_refused(placed("bf16,prompt=flashq", sinking), "neither sink logits", "prompt=exact");
  expect_refused(placed("turboattention-4bit", sinking), "softmax=sas", "softmax=exact");
}

TEST(PlaceOn, KeepsTheTailInBf16AndSaysSo) {
  const auto plan = placed("kvant-4bit");
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->tail->name(), "bf16");
  EXPECT_NE(to_string((*plan)->recipe).find("tail=bf16"), std::string::npos);
  const auto integers = placed("turboattention-4bit");
  ASSERT_TRUE(integers.ok());
  EXPECT_EQ(to_string((*integers)->recipe).find("products"),
            std::string::npos);  // A device always uses real products.
  EXPECT_NE(to_string((*integers)->recipe).find("softmax=sas"), std::string::npos);
  EXPECT_TRUE(is_unquantized(**placed("bf16")));
  EXPECT_FALSE(is_unquantized(**plan));
}

// Prompts attend in integers, but decoded tokens attend in half precision.
TEST(PlaceOn, ReadsPromptsInIntegersWhereTheRecipeMultipliesThem) {
  EXPECT_EQ((*placed("turboattention-4bit"))->recipe.prompt, PromptAttention::flashq);
  EXPECT_EQ((*placed("turboattention-4bit,products=real"))->recipe.prompt, PromptAttention::exact);
  Geometry capped = testing::small_geometry();
  capped.score_softcap = 50;
  EXPECT_EQ((*placed("turboattention-4bit", capped))->recipe.prompt, PromptAttention::exact);
}

TEST(PlaceOn, SaysWhatItHasNoRoomFor) {
  const Recipe recipe = parse_recipe("vecinfer-2bit").value();
  const Geometry geometry = testing::small_geometry();
  Constants constants = *testing::made_up_constants(recipe, geometry);
  const auto plan = resolve(recipe, geometry, std::make_shared<Constants>(constants)).value();
  expect_refused(place_on(std::make_shared<testing::HostPages>(/*limit=*/1000), plan), "out of memory",
                 "constants of vecinfer-2bit");
  std::vector<float> codebook(std::size_t{256} * 4, 1);
  codebook[5] = 70000;  // Half precision ends at 65504.
  constants.set(1, 0, Side::value, "codebook/vq-d4b8", codebook);
  expect_refused(place_on(std::make_shared<testing::HostPages>(),
                          resolve(recipe, geometry, std::make_shared<Constants>(constants)).value()),
                 "layer 1, KV head 0", "--device cpu");
}

TEST(EntryLayout, PagesOfAllHeadsAndSidesLieSideBySide) {
  const auto plan = placed("k=tok8g64,v=tok4g64,k@0.0=ch2g64,v@1.0=tok2g64,v@1.1=fp8");
  ASSERT_TRUE(plan.ok());
  const PageLibrary& library = plan->device()->library();
  const EntryLayout layout = sealed_layout(**plan, library, layer_groups(**plan).front().layers);
  const int n_heads = (*plan)->geometry.n_kv_heads, d = (*plan)->geometry.head_dim;
  std::size_t end = 0;
  for (int layer = 0; layer < (*plan)->geometry.n_layers; ++layer) {
    const EntryLayout::Layer& l = layout.layers[layer];
    for (int h = 0; h < n_heads; ++h) {
      for (const Side side : kSides) {
        EXPECT_EQ(l.place(h, side), end);
        EXPECT_EQ(end % 16, 0U);
        EXPECT_EQ(l.bytes(h, side), library.page_bytes(head_formats(**plan, layer, side)[h], d));
        end += l.bytes(h, side);
      }
    }
  }
  EXPECT_LE(end, layout.bytes);
  EXPECT_LT(layout.bytes, end + kDeviceUnit);
  EXPECT_EQ(layout.bytes % kDeviceUnit, 0U);
}

TEST(EntryLayout, OtherGroupsLayersTakeNothing) {
  Geometry g = testing::small_geometry();
  g.sliding_window[0] = 300;
  const auto plan = placed("k=ch4g64,v=tok4g64,sink=4", g);
  ASSERT_TRUE(plan.ok());
  const auto groups = layer_groups(**plan);
  ASSERT_EQ(groups.size(), 2U);
  const PageLibrary& library = plan->device()->library();
  for (int group = 0; group < 2; ++group) {
    for (const EntryLayout& layout : {sealed_layout(**plan, library, groups[group].layers),
                                      plain_layout(**plan, kPageTokens, groups[group].layers)}) {
      EXPECT_EQ(layout.layers[1 - group].bytes(0, Side::key), 0U);
      EXPECT_EQ(layout.layers[group].offset, 0U);
      std::size_t bytes = 0;
      for (int h = 0; h < g.n_kv_heads; ++h) {
        for (const Side side : kSides) bytes += layout.layers[group].bytes(h, side);
      }
      EXPECT_GT(bytes, 0U);
      EXPECT_LT(layout.bytes - bytes, kDeviceUnit);
    }
  }
  const EntryLayout sink = protected_layout(**plan);  // The layer with a sink keeps 16 tokens in BF16.
  EXPECT_EQ(sink.bytes, std::size_t{2} * 16 * 2 * g.n_kv_heads * g.head_dim);
}

// The formats' definitions give the expected bytes: a page has 128 x 64 codes, and two f16 for every channel
// or for every token.
TEST(EntryLayout, UnlikeHeadsTakeTheBytesOfTheirOwnFormats) {
  const auto plan = placed("k=ch4g128,v=tok4g64,k@0.0=ch2g128,v@0.1=tok8g64");
  ASSERT_TRUE(plan.ok());
  const EntryLayout layout =
      sealed_layout(**plan, plan->device()->library(), layer_groups(**plan).front().layers);
  constexpr std::size_t kBit = 128 * 64 / 8, kOfChannels = 64 * 4, kOfTokens = 128 * 4;
  EXPECT_EQ(layout.layers[1].offset, 2 * kBit + kOfChannels + 4 * kBit + kOfTokens  // head 0
                                         + 4 * kBit + kOfChannels + 8 * kBit + kOfTokens);
}

}  // namespace
}  // namespace kvant
