#include "attention/plan_report.h"

#include <gtest/gtest.h>

#include "attention/device_backend.h"
#include "cache/cache_fixture.h"
#include "cache/device_layout.h"
#include "cache/testing/host_pages.h"
#include "recipe/stand_in_constants.h"

namespace kvant {
namespace {

TEST(PlanReport, GroupsLayersAndHeadsThatAreAlike) {
  const Geometry geometry = testing::small_geometry(64, 6, 2, /*n_layers=*/5);
  const auto plan =
      testing::plan_for("k=hadamard:ch4g128,v=tok4g128,k@1-2=bf16,v@3.1=tok2g128,sink=4", geometry);
  const auto backend = make_reference_backend();
  const PlanReport report = report_plan(*plan, *backend);
  ASSERT_EQ(report.rows.size(), 5U);
  EXPECT_EQ(report.rows[0].layers, "0,3-4");
  EXPECT_EQ(report.rows[0].kv_heads, "0-1");
  EXPECT_EQ(report.rows[0].transforms, "hadamard");
  EXPECT_EQ(report.rows[0].format, "ch4g128");
  EXPECT_EQ(report.rows[0].kernel, "reference");
  EXPECT_EQ(report.rows[1].layers, "1-2");
  EXPECT_EQ(report.rows[1].format, "bf16");
  EXPECT_EQ(report.rows[1].page_bytes, 128U * 64 * 2);
  std::string v_rows;
  for (const PlanRow& row : report.rows) {
    if (row.side == Side::value) v_rows += row.layers + "/" + row.kv_heads + "=" + row.format + " ";
  }
  EXPECT_EQ(v_rows, "0-2,4/0-1=tok4g128 3/1=tok2g128 3/0=tok4g128 ");
}

TEST(PlanReport, SaysWhichPagesNoKernelMultiplies) {
  const auto backend = make_cpu_backend();
  const auto report_of = [&](const char* recipe, int head_dim) {
    const auto plan = testing::plan_for(recipe, testing::small_geometry(head_dim, 6, 2, /*n_layers=*/5),
                                        nullptr, backend->page_order());
    return report_plan(*plan, *backend);
  };
  EXPECT_TRUE(report_of("k=ch4g128,v=bf16", 64).fallbacks.empty());
  const PlanReport decoded = report_of("k=ch4g128,k@1-2=gear4-ch4g128,v=bf16", 64);
  ASSERT_EQ(decoded.fallbacks.size(), 1U);
  EXPECT_EQ(decoded.fallbacks[0].what, "K of layers 1-2: gear4-ch4g128");
  EXPECT_EQ(report_of("k=ch4g128,v=bf16", 80).fallbacks.size(), 1U) << "10 groups of 8 channels";
}

// `info` plans with stand-ins for constants, but `run` with calibrated constants. Both plans use the
// backend's page order and must name equal kernels.
TEST(PlanReport, NamesTheSameKernelsWhateverTheConstants) {
  const auto backend = make_cpu_backend();
  const Geometry geometry = testing::small_geometry();
  for (const Recipe& recipe : builtin_recipes()) {
    if (recipe.tier != Tier::product) continue;
    const auto plan = resolve(recipe, geometry, stand_in_constants(recipe, geometry), backend->page_order());
    ASSERT_TRUE(plan.ok()) << recipe.name;
    const PlanReport planned = report_plan(**plan, *backend);
    EXPECT_TRUE(planned.fallbacks.empty()) << recipe.name << ": " << planned.fallbacks[0].what;
    if (recipe.budget > 0 || recipe.mix > 0) continue;  // The constants choose among formats.
    const PlanReport used =
        report_plan(*testing::plan_for(recipe.name, geometry, nullptr, backend->page_order()), *backend);
    EXPECT_EQ(plan_table(planned), plan_table(used)) << recipe.name;
  }
}

TEST(PlanReport, PrintsFallbacks) {
  PlanReport report;
  report.summary = "k=x";
  report.fallbacks.push_back({"layers 0-3 K x", "no fast kernel"});
  report.rows.push_back({Side::key, "0-3", "0", "", "x", "reference", 10});
  EXPECT_NE(plan_table(report).find("fallback: layers 0-3 K x: no fast kernel"), std::string::npos);
}

TEST(PlanReport, SaysWhatACalibrationWouldBring) {
  const Geometry geometry = testing::small_geometry(64, 6, 2, 2);
  const auto backend = make_reference_backend();
  const PlanReport report = report_plan(**resolve(*parse_recipe("kvant-2bit"), geometry, nullptr), *backend);
  const std::string table = plan_table(report);
  EXPECT_NE(table.find("not calibrated: "), std::string::npos) << table;
  EXPECT_NE(table.find("not calibrated: used in place of kvant-2bit: every layer, head and side has"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("kvant calibrate --kv kvant-2bit"), std::string::npos) << table;
  EXPECT_EQ(report.asked, "kvant-2bit");
  const auto fixed = testing::plan_for("k=ch2g128,v=tok2g128", geometry);
  EXPECT_EQ(plan_table(report_plan(*fixed, *backend)).find("calibrat"), std::string::npos);
}

// HostPages' library keeps tails in bf16 and multiplies real numbers, and its kernels skip values.
TEST(PlanReport, SaysWhatADeviceChangesInEveryRecipe) {
  const auto device = std::make_shared<testing::HostPages>();
  const auto backend = make_device_backend(device);
  const Geometry geometry = testing::small_geometry();
  int n_placed = 0, n_changed = 0;
  for (const Recipe& recipe : builtin_recipes()) {
    const auto plan = place_on(device, testing::plan_for(recipe.name, geometry));
    if (!plan.ok()) continue;
    ++n_placed;
    std::vector<std::string> expected;
    if (!recipe.tail.empty() && recipe.tail != "bf16")
      expected.push_back("unsealed and protected tokens: bf16 instead of " + recipe.tail);
    if (recipe.products == Products::integer)
      expected.emplace_back("products of decoded tokens: real instead of integer");
    std::vector<std::string> found;
    for (const Fallback& fallback : report_plan(**plan, *backend).fallbacks) found.push_back(fallback.what);
    EXPECT_EQ(found, expected) << recipe.name;
    n_changed += expected.empty() ? 0 : 1;
  }
  EXPECT_GT(n_placed, 20);
  EXPECT_GT(n_changed, 1);
}

// A device without a kernel that skips values says so for every recipe that allows skips.
TEST(PlanReport, SaysWhereAllValuesAreRead) {
  const auto device = std::make_shared<testing::HostPages>();
  device->functions().decode_kernel = [](const kvant_decode_shape*) { return "a kernel"; };
  const auto backend = make_device_backend(device);
  int n_skipping = 0;
  for (const Recipe& recipe : builtin_recipes()) {
    const auto plan = place_on(device, testing::plan_for(recipe.name, testing::small_geometry()));
    if (!plan.ok()) continue;
    std::string reasons;
    for (const Fallback& fallback : report_plan(**plan, *backend).fallbacks)
      reasons += fallback.what + ": " + fallback.reason + "\n";
    const bool is_said = reasons.find("reads all values") != std::string::npos;
    EXPECT_EQ(is_said, recipe.skip > 0) << recipe.name << ": " << reasons;
    n_skipping += recipe.skip > 0 ? 1 : 0;
  }
  EXPECT_GT(n_skipping, 0);
}

TEST(PlanReport, SaysHowErrorsOfKeysAreShaped) {
  const Geometry g = testing::small_geometry(64);
  const auto backend = make_reference_backend();
  const auto encoder = [&](const std::string& text, bool calibrated) {
    const Recipe recipe = *parse_recipe(text);
    const auto plan = resolve(recipe, g, calibrated ? testing::made_up_constants(recipe, g) : nullptr);
    return report_plan(**plan, *backend).encoder;
  };
  EXPECT_EQ(encoder("k=tcq2,v=tcq2", false), "");
  EXPECT_EQ(encoder("k=tcq2,v=tcq2,encode=shaped", false), "");
  EXPECT_EQ(encoder("k=tok2g32,v=tok2g32,encode=shaped", true), "");
  EXPECT_EQ(encoder("k=tcq2,v=tcq2,encode=shaped", true), "weighted by the queries of the calibration");
  EXPECT_EQ(encoder("k=tcq2,v=tcq2,encode=sampled", true), "weighted by the queries of a short text");
  const auto placed =
      place_on(std::make_shared<testing::HostPages>(), testing::plan_for("k=tcq2,v=tcq2,encode=shaped", g));
  ASSERT_TRUE(placed.ok());
  EXPECT_EQ(report_plan(**placed, *backend).encoder, "weighted by the queries of the calibration");
}

}  // namespace
}  // namespace kvant
