// Places plans on HostPages by what libkvant_cuda says that it serves, for which the library needs no GPU.
// The tests are skipped where the build has no CUDA compiler.
#include "model/cuda_library.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/device_backend.h"
#include "attention/plan_report.h"
#include "cache/cache_fixture.h"
#include "cache/device_layout.h"
#include "cache/testing/host_pages.h"

namespace kvant {
namespace {

class CudaAnswers : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto library = load_page_library();
    if (!library.ok()) GTEST_SKIP() << library.error().message;
    PageLibrary& functions = device_->functions();
    functions.last_error = library->last_error;
    functions.supports = library->supports;
    functions.page_bytes = library->page_bytes;
    functions.decode_kernel = library->decode_kernel;
  }
  Result<PlacedPlan> placed(const std::string& text, const Geometry& geometry = testing::small_geometry()) {
    const Recipe recipe = parse_recipe(text).value();
    const auto plan = resolve(recipe, geometry, testing::made_up_constants(recipe, geometry));
    EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
    return place_on(device_, *plan);
  }
  void expect_refused(const Result<PlacedPlan>& plan, const std::string& reason, const std::string& instead) {
    ASSERT_FALSE(plan.ok()) << reason;
    EXPECT_NE(plan.error().message.find(reason), std::string::npos) << plan.error().message;
    EXPECT_NE(plan.error().message.find(instead), std::string::npos) << plan.error().message;
  }

  std::shared_ptr<testing::HostPages> device_ = std::make_shared<testing::HostPages>();
};

TEST_F(CudaAnswers, PlaceWhatKernelsServe) {
  Geometry shared = testing::small_geometry();
  shared.shared = {true, false};
  for (const Geometry& g :
       {testing::small_geometry(), testing::small_geometry(512), testing::unlike_layers(512, 256, 1, 2),
        testing::unlike_layers(64, 128), shared}) {
    EXPECT_TRUE(placed("bf16", g).ok());
    EXPECT_TRUE(placed("kvant-4bit", g).ok());
    EXPECT_TRUE(placed("k=ch4g128,v=tok4g128", g).ok());
  }
  EXPECT_TRUE(placed("vquant-k4v2,prompt=flashq").ok());
  EXPECT_TRUE(placed("kvant-4bit,prompt=flashq", testing::small_geometry(/*head_dim=*/256)).ok());
}

TEST_F(CudaAnswers, SayWhatKernelsLack) {
  const char* const on_cpu = "; use --no-kv-offload, which computes attention on the CPU, or --device cpu";
  expect_refused(placed("bf16", testing::small_geometry(80)), "heads of 80 channels", on_cpu);
  expect_refused(placed("bf16", testing::small_geometry(80)), "head_dim must be 64, 128, 256 or 512", on_cpu);
  expect_refused(placed("bf16", testing::unlike_layers()), "heads of 32 channels", on_cpu);
  expect_refused(placed("bf16", testing::small_geometry(64, 34, 2)), "group must be 1 to 16", on_cpu);
  expect_refused(placed("bf16", testing::small_geometry(64, 65, 65)), "n_kv_heads must be 1 to 64", on_cpu);
  expect_refused(placed("million-2bit"), "K in pq-d4b8", "use vq-d4b8 instead of pq-d4b8");
  expect_refused(placed("f16"), "K in f16", "bf16 on both sides");
  expect_refused(placed("k=bf16,v=tok4g64"), "K in bf16 and V in tok4g64", "instead of bf16, or");
  expect_refused(placed("h2o-50"), "masks leave some out", "evict=0");
  expect_refused(placed("kvlinc-2bit,prompt=flashq"), "nor a correction", "prompt=exact");
  expect_refused(placed("kvlinc-2bit,k=tok2g64"), "keys of ch formats with values of tok formats",
                 "correction=none");
  expect_refused(placed("kvlinc-2bit", testing::small_geometry(/*head_dim=*/64, 18)), "at most 8 query heads",
                 "correction=none");
  expect_refused(placed("bf16,prompt=flashq", testing::small_geometry(512)), "up to 256 channels",
                 "prompt=exact");
  expect_refused(placed("vquant-k4v2", testing::small_geometry(512)), "up to 256 channels", "protect=0");
  std::string ladder = "k=tok4g64,v=tok4g64";
  const char* const formats[] = {"tok2g64", "tok3g64", "tok5g64", "tok6g64",
                                 "tok8g64", "ch2g64",  "ch3g64",  "ch4g64"};
  for (int h = 0; h < 8; ++h) ladder += fmt::format(",k@0.{}={}", h, formats[h]);
  expect_refused(placed(ladder, testing::small_geometry(64, 9, 9)), "more than 8 pairs of formats",
                 "a smaller ladder");
}

// Only one kernel skips values.
TEST_F(CudaAnswers, SayWhereAllValuesAreRead) {
  const auto backend = make_device_backend(device_);
  const auto reads_all = [&](const std::string& recipe, int head_dim) {
    const auto plan = placed(recipe, testing::small_geometry(head_dim));
    const PlanReport report = report_plan(**plan, *backend);
    return std::ranges::any_of(report.fallbacks, [](const Fallback& fallback) {
      return fallback.what.starts_with("V of layers 0-1: ") &&
             fallback.reason.find("reads all values") != std::string::npos;
    });
  };
  EXPECT_TRUE(reads_all("turbo3-sparse-v", 128));
  EXPECT_TRUE(reads_all("k=ch4g128,v=tok4g128,skip=1e-6", 64));
  EXPECT_FALSE(reads_all("k=ch4g128,v=tok4g128,skip=1e-6", 128));
  EXPECT_FALSE(reads_all("kvant-4bit", 128));
}

TEST_F(CudaAnswers, DecideWhetherPromptsAreInIntegers) {
  EXPECT_EQ((*placed("turboattention-4bit"))->recipe.prompt, PromptAttention::flashq);
  EXPECT_EQ((*placed("turboattention-4bit", testing::small_geometry(512)))->recipe.prompt,
            PromptAttention::exact);
}

}  // namespace
}  // namespace kvant
