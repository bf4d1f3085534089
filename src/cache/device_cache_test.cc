// Tests a cache on a device whose memory is host memory: the bytes that the cache takes, its images and cuts,
// and its errors if the device fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "cache/cache_fixture.h"
#include "cache/device_layout.h"
#include "cache/layer_groups.h"
#include "cache/synthetic_sequence.h"
#include "cache/testing/host_pages.h"
#include "format/page_metric.h"

namespace kvant {
namespace {

using testing::HostPages;

constexpr const char* kSinkRecipe = "k=ch4g64,v=tok4g64,sink=20";

// Returns two layers. The first layer sees only the newest 200 tokens.
Geometry sliding_geometry() {
  Geometry g = testing::small_geometry();
  g.sliding_window = {200, 0};
  return g;
}

PlacedPlan plan_on(const std::shared_ptr<HostPages>& device, const std::string& recipe,
                   const Geometry& geometry = testing::small_geometry()) {
  return place_on(device, testing::plan_for(recipe, geometry)).value();
}

// Returns the bytes of a tail entry of a plan without windows.
std::int64_t plain_bytes(const Plan& plan) {
  return static_cast<std::int64_t>(plain_layout(plan, kPageTokens, layer_groups(plan).front().layers).bytes);
}

const char* lost() {
  return "the GPU has fallen off the bus";
}

TEST(DeviceCache, ASinkOfAWholePageIsNoPageOfTheTail) {
  const auto plan = plan_on(std::make_shared<HostPages>(), "k=ch4g64,v=tok4g64,sink=128");
  Cache cache(plan, 0);
  const SequenceId sequence = cache.add();
  for (const bool is_prompt : {true, false, true}) {  // The second step seals the first page.
    auto step = cache.reserve({{sequence, 128, is_prompt}});
    ASSERT_TRUE(step.ok());
    ASSERT_TRUE((*step)->commit().ok());
  }
  const auto plain = plain_bytes(*plan);
  const CacheBytes bytes = cache.bytes(sequence);
  EXPECT_EQ(bytes.sink, plain);
  EXPECT_EQ(bytes.tail % plain, 0);
  ASSERT_TRUE(cache.truncate(sequence, 70).ok());
  EXPECT_EQ(cache.bytes(sequence).sink, 0);
  EXPECT_EQ(cache.bytes(sequence).all(), plain);
  cache.free(sequence);
  EXPECT_EQ(cache.page_bytes_in_use(), 0);
}

TEST(DeviceCache, HasTheMetricsOfKeysWhoseErrorsAreShaped) {
  const auto plan =
      plan_on(std::make_shared<HostPages>(), "k=hadamard:tcq2,v=tcq2,k@1.1=ch4g64,encode=shaped");
  const Geometry& g = plan->geometry;
  const kvant_page_metrics* given = plan.constants().page_metrics(g.n_layers - 1);
  ASSERT_NE(given, nullptr);
  const std::size_t of_head = static_cast<std::size_t>(g.head_dim) * kMetricRank;
  for (int head = 0; head < g.n_kv_heads; ++head) {
    const std::span<const float> found(given->directions + head * of_head, of_head);
    const SidePlan& keys = plan->head(g.n_layers - 1, head).k;
    if (!keys.sealed->shapes_errors()) {
      EXPECT_TRUE(std::isnan(found[0])) << head;
      continue;
    }
    const std::span<const float> constant = keys.context.constants.find(kPageMetric);
    EXPECT_TRUE(std::ranges::equal(found, constant.first(of_head)));
    EXPECT_TRUE(
        std::ranges::equal(std::span(given->turns, std::size_t{2} * g.head_dim), constant.subspan(of_head)));
    std::vector<float> query(g.head_dim, 0.0F);
    query[3] = 1;
    keys.transform.query({query.data(), 1, g.head_dim}, nullptr);
    EXPECT_TRUE(
        std::ranges::equal(query, std::span(given->basis + std::ptrdiff_t{3} * g.head_dim, g.head_dim)));
  }
  const auto plain = plan_on(std::make_shared<HostPages>(), "k=tcq2,v=tcq2");
  EXPECT_EQ(plain.constants().page_metrics(0), nullptr);
}

TEST(DeviceCache, TruncationSaysWhyTheDeviceFailedAndLeavesTheSequence) {
  const auto device = std::make_shared<HostPages>();
  Cache cache(plan_on(device, kSinkRecipe), 0);
  const SequenceId sequence = cache.add();
  ASSERT_TRUE(fill_synthetic(cache, sequence, 300, 1).ok());
  const std::int64_t before = cache.page_bytes_in_use();
  device->fail(error("the host failed: {}", lost()));
  const Status finished = cache.truncate(sequence, 70);
  ASSERT_FALSE(finished.ok());
  EXPECT_NE(finished.error().message.find("the host failed"), std::string::npos) << finished.error().message;
  EXPECT_EQ(cache.length(sequence), 300);
  EXPECT_EQ(cache.page_bytes_in_use(), before);
  EXPECT_TRUE(cache.truncate(sequence, 70).ok());
  EXPECT_EQ(cache.length(sequence), 70);
}

TEST(DeviceCache, FillingSaysWhyTheDeviceFailed) {
  const auto device = std::make_shared<HostPages>();
  Cache cache(plan_on(device, kSinkRecipe), 0);
  const SequenceId sequence = cache.add();
  device->fail(error("the host failed: {}", lost()));
  const Status failed = fill_synthetic(cache, sequence, 300, 1);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find(lost()), std::string::npos) << failed.error().message;
  EXPECT_EQ(cache.length(sequence), 0);
  EXPECT_EQ(cache.page_bytes_in_use(), 0);
  EXPECT_TRUE(fill_synthetic(cache, sequence, 300, 1).ok());
}

// Moves a sequence from host memory to a device and back, and from a device to host memory and back. The
// bytes must be equal.
void expect_the_same_images(const char* recipe, int n_tokens, const Geometry& geometry) {
  const std::string what =
      fmt::format("{}, {} tokens, window {}", recipe, n_tokens, geometry.sliding_window[0]);
  Cache in_host(testing::plan_for(std::string(recipe) + ",tail=bf16", geometry), 0);
  Cache on_device(plan_on(std::make_shared<HostPages>(), recipe, geometry), 0);
  const SequenceId written = in_host.add();
  ASSERT_TRUE(fill_synthetic(in_host, written, n_tokens, 3).ok());
  const std::vector<std::byte> image = in_host.export_sequence(written).value();
  const auto read = on_device.import_sequence(image);
  ASSERT_TRUE(read.ok()) << what;
  EXPECT_EQ(on_device.length(*read), n_tokens);
  EXPECT_EQ(on_device.export_sequence(*read).value(), image) << what;
  EXPECT_EQ(on_device.export_sequence(on_device.fork(*read).value()).value(), image) << what;
  EXPECT_EQ(on_device.bytes(*read).elements, in_host.bytes(written).elements) << what;

  const SequenceId made = on_device.add();
  ASSERT_TRUE(fill_synthetic(on_device, made, n_tokens, 4).ok());
  const std::vector<std::byte> other = on_device.export_sequence(made).value();
  const auto back = in_host.import_sequence(other);
  ASSERT_TRUE(back.ok()) << what;
  EXPECT_EQ(in_host.export_sequence(*back).value(), other) << what;
}

TEST(DeviceCache, ReadsAndWritesTheImagesOfCachesInHostMemory) {
  for (const char* recipe :
       {"bf16", kSinkRecipe, "k=ch4g64,v=tok4g64,sink=128,window=256", "k=tok8g64,v=tok4g64,v@1.0=tok2g64",
        "k=prog4,v=prog4", "vecinfer-2bit", "k=nvq-d4b8,v=tok4g64,v@1.0=vq-d2b8", "kvlinc-2bit",
        "k=tcq1,v=tcq3,k@0.1=tcq3,v@0.1=fp8,k@1.0=ch4g64,v@1.0=tcq1,sink=4",
        "k=ch4g64,v=tok2g64,k@0.0=ch2g64,v@1.1=tok8g64,protect=0.1,sink=4,window=128",
        "k=ch4g64,v=tok2g64,protect=0.1,sink=4,window=128"}) {
    for (const int n_tokens : {0, 5, 128, 200, 700}) {
      expect_the_same_images(recipe, n_tokens, testing::small_geometry());
      expect_the_same_images(recipe, n_tokens, sliding_geometry());
    }
  }
}

TEST(DeviceCache, ReadsAndWritesTheImagesOfLayersWhoseHeadsDiffer) {
  for (const char* recipe : {"bf16", kSinkRecipe, "k=tcq2,v=tok4g64,sink=4", "k=nvq-d4b8,v=tok4g64"}) {
    for (const int n_tokens : {5, 200, 700}) {
      expect_the_same_images(recipe, n_tokens, testing::unlike_layers(128, 64, 1, 2));
      expect_the_same_images(recipe, n_tokens, testing::unlike_layers(64, 128, 4, 2));
    }
  }
  expect_the_same_images("k=ch4g128,v=tok4g128", 300, testing::unlike_layers(512, 256, 1, 2));
}

// The pages of these heads differ in size. A cut into a sealed page must find each head's page in its entry,
// and leave the same bytes as a cache in host memory.
TEST(DeviceCache, CutsUnlikeHeadsBackAsCachesInHostMemoryDo) {
  for (const char* recipe : {"k=tcq1,v=tcq3,k@0.1=tcq3,v@0.1=fp8,k@1.0=ch4g64,v@1.0=tcq1,sink=4",
                             "k=ch4g64,v=tok2g64,k@0.0=ch2g64,v@1.1=tok8g64"}) {
    Cache in_host(testing::plan_for(std::string(recipe) + ",tail=bf16", testing::small_geometry()), 0);
    Cache on_device(plan_on(std::make_shared<HostPages>(), recipe), 0);
    const SequenceId written = in_host.add(), sealed = on_device.add();
    ASSERT_TRUE(fill_synthetic(in_host, written, 700, 3).ok());
    ASSERT_TRUE(fill_synthetic(on_device, sealed, 700, 4).ok());
    const SequenceId read = on_device.import_sequence(in_host.export_sequence(written).value()).value(),
                     back = in_host.import_sequence(on_device.export_sequence(sealed).value()).value();
    for (const auto& [host, device] : {std::pair{written, read}, {back, sealed}}) {
      ASSERT_TRUE(in_host.truncate(host, 300).ok());
      ASSERT_TRUE(on_device.truncate(device, 300).ok());
      EXPECT_TRUE(on_device.export_sequence(device).value() == in_host.export_sequence(host).value())
          << recipe;
    }
  }
}

// After a window has freed pages, a cache on a device refuses exactly the cuts that a cache in host memory
// refuses. All other cuts give equal bytes.
TEST(DeviceCache, CutsBackBehindFreedPagesAsCachesInHostMemoryDo) {
  for (const char* recipe : {"bf16", kSinkRecipe, "k=ch4g64,v=tok4g64,window=256,sink=4",
                             "k=ch4g64,v=tok2g64,protect=0.1,sink=4,window=128"}) {
    const bool by_score = std::string(recipe).find("protect") != std::string::npos;
    const Geometry geometry = by_score ? sliding_geometry() : testing::unlike_layers(128, 64, 1, 2);
    Cache in_host(testing::plan_for(std::string(recipe) + ",tail=bf16", geometry), 0);
    Cache on_device(plan_on(std::make_shared<HostPages>(), recipe, geometry), 0);
    const SequenceId written = in_host.add();
    ASSERT_TRUE(fill_synthetic(in_host, written, 1030, 3).ok());
    const SequenceId read = on_device.import_sequence(in_host.export_sequence(written).value()).value();
    int n_cut = 0;
    for (int n_tokens = 0; n_tokens <= 1030; n_tokens += 25) {
      const SequenceId host = in_host.fork(written).value(), device = on_device.fork(read).value();
      const bool cut = in_host.truncate(host, n_tokens).ok();
      ASSERT_EQ(on_device.truncate(device, n_tokens).ok(), cut) << recipe << ", " << n_tokens;
      EXPECT_TRUE(on_device.export_sequence(device).value() == in_host.export_sequence(host).value())
          << recipe << ", " << n_tokens;
      n_cut += cut ? 1 : 0;
      in_host.free(host);
      on_device.free(device);
    }
    EXPECT_GT(n_cut, 2) << recipe;
    EXPECT_LT(n_cut, 20) << recipe;
    on_device.free(read);
    EXPECT_EQ(on_device.page_bytes_in_use(), 0) << recipe;
  }
}

// The bytes of a layer with a window do not depend on the length. The layer holds the pages of the window,
// and a page at each end.
TEST(DeviceCache, KeepsWhatAWindowSeesAndUsesTheRestAgain) {
  for (const char* recipe : {"bf16", "k=ch4g64,v=tok4g64,sink=4", "k=ch4g64,v=tok4g64,window=256"}) {
    const auto plan = plan_on(std::make_shared<HostPages>(), recipe, sliding_geometry());
    const int window = plan->layers[0].window;
    Cache cache(plan, 0);
    const SequenceId sequence = cache.add();
    std::int64_t reserved = 0;
    for (int length = 0; length < 6000;) {
      const int n = length < 3000 ? 100 : 7;
      auto step = cache.reserve({{sequence, n, /*is_prompt=*/length < 3000}});
      ASSERT_TRUE(step.ok());
      ASSERT_TRUE((*step)->commit().ok());
      length += n;
      int n_sliding = 0, n_full = 0;
      cache.ledger(sequence, 0).for_each_entry([&](int page, PageEntry) {
        ++n_sliding;
        EXPECT_TRUE((page + 1) * kPageTokens > length - 199 || (page + 1) * kPageTokens + window > length)
            << recipe << ": page " << page << " of " << length;
      });
      cache.ledger(sequence, 1).for_each_entry([&](int, PageEntry) { ++n_full; });
      EXPECT_EQ(n_full, pages_for(length)) << recipe;
      EXPECT_LE(n_sliding, pages_for(std::max(200, window) + kPageTokens) + 1) << recipe << ", " << length;
      if (length == 3000) reserved = cache.bytes_reserved();
    }
    if (is_unquantized(*plan)) continue;
    // The slabs of the layer without a window have at most twice the bytes of its pages.
    const auto full = static_cast<std::int64_t>(
        sealed_layout(*plan, plan.device()->library(), layer_groups(*plan)[1].layers).bytes);
    EXPECT_LE(cache.bytes_reserved() - reserved, 2 * full * pages_for(6000)) << recipe;
  }
}

TEST(DeviceCache, SaysWhyAnImageCannotBeWritten) {
  const auto device = std::make_shared<HostPages>();
  Cache cache(plan_on(device, kSinkRecipe), 0);
  const SequenceId sequence = cache.add();
  ASSERT_TRUE(fill_synthetic(cache, sequence, 300, 1).ok());
  device->fail(error("the host failed: {}", lost()));
  const auto failed = cache.export_sequence(sequence);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find(lost()), std::string::npos) << failed.error().message;
  EXPECT_TRUE(cache.export_sequence(sequence).ok());
}

TEST(DeviceCache, RefusesImagesWhoseGroupsHaveUnlikePagesSealed) {
  Cache cache(plan_on(std::make_shared<HostPages>(), kSinkRecipe, sliding_geometry()), 0);
  const SequenceId sequence = cache.add();
  ASSERT_TRUE(fill_synthetic(cache, sequence, 1000, 1).ok());
  std::vector<std::byte> image = cache.export_sequence(sequence).value();
  const std::int64_t before = cache.page_bytes_in_use();
  constexpr std::size_t kSealedOfSecond = 4 * (5 + 2 + 2);
  ASSERT_EQ(std::to_integer<int>(image[kSealedOfSecond]), 7);
  image[kSealedOfSecond] = std::byte{6};
  EXPECT_FALSE(cache.import_sequence(image).ok());
  image[kSealedOfSecond] = std::byte{7};
  EXPECT_TRUE(cache.import_sequence(image).ok());
  EXPECT_EQ(cache.page_bytes_in_use(), 2 * before);
}

// Each group in turn is the group without memory.
TEST(DeviceCache, AStepWithoutMemoryLeavesAllGroupsAsTheyWere) {
  const auto plan = plan_on(std::make_shared<HostPages>(), kSinkRecipe, sliding_geometry());
  const std::int64_t entry = plain_bytes(*plan);  // The bytes of an entry are equal for both groups.
  int n_failed = 0;
  for (std::int64_t limit = entry; limit < 40 * entry; limit += entry / 2) {
    Cache cache(plan, limit);
    const SequenceId sequence = cache.add();
    for (const int n : {300, 700, 1}) {
      const std::int64_t before = cache.page_bytes_in_use();
      const int length = cache.length(sequence);
      auto step = cache.reserve({{sequence, n, /*is_prompt=*/true}});
      if (step.ok()) {
        ASSERT_TRUE((*step)->commit().ok());
        continue;
      }
      ++n_failed;
      EXPECT_TRUE(step.error().is_shortage);
      EXPECT_EQ(cache.page_bytes_in_use(), before) << limit;
      EXPECT_EQ(cache.length(sequence), length);
      EXPECT_LE(cache.bytes_reserved(), limit);
    }
    cache.free(sequence);
    EXPECT_EQ(cache.page_bytes_in_use(), 0) << limit;
  }
  EXPECT_GT(n_failed, 10);
}

// Tail entries use up the whole limit. When they are given back, sealed entries must find room.
TEST(DeviceCache, MemoryOfOneKindOfPagesServesTheOther) {
  const auto plan = plan_on(std::make_shared<HostPages>(), "k=ch4g64,v=tok4g64");
  const auto plain = plain_bytes(*plan);
  Cache cache(plan, 40 * plain);
  std::vector<SequenceId> sequences;
  for (int i = 0; i < 40; ++i) {
    sequences.push_back(cache.add());
    auto step = cache.reserve({{sequences.back(), 100, true}});
    ASSERT_TRUE(step.ok()) << i;
    ASSERT_TRUE((*step)->commit().ok());
  }
  EXPECT_FALSE(cache.reserve({{cache.add(), 100, true}}).ok());
  for (const SequenceId sequence : sequences) cache.free(sequence);
  EXPECT_TRUE(fill_synthetic(cache, cache.add(), 128 * 100, 1).ok());
  EXPECT_LE(cache.bytes_reserved(), 40 * plain);
}

// A fork that continues opens a page for its own tail and takes nothing else.
TEST(DeviceCache, ManyForksTakeOnePrefixAndTheirTails) {
  constexpr int kPrefix = 16384, kForks = 64;
  for (const auto& [recipe, geometry] : {std::pair{"k=ch4g64,v=tok4g64", testing::small_geometry()},
                                         {kSinkRecipe, testing::small_geometry()},
                                         {"k=tcq2,v=tcq2,sink=4,window=128", testing::small_geometry()},
                                         {kSinkRecipe, sliding_geometry()}}) {
    const auto plan = plan_on(std::make_shared<HostPages>(), recipe, geometry);
    std::int64_t tail = 0;
    for (const LayersOfEntry& group : layer_groups(*plan))
      tail += static_cast<std::int64_t>(plain_layout(*plan, kPageTokens, group.layers).bytes);
    Cache cache(plan, 0);
    const SequenceId prefix = cache.add();
    ASSERT_TRUE(fill_synthetic(cache, prefix, kPrefix, 1).ok());
    const CacheBytes one = cache.bytes();
    const std::int64_t reserved = cache.bytes_reserved();
    std::vector<SequenceId> forks;
    forks.reserve(kForks);
    for (int i = 0; i < kForks; ++i) forks.push_back(*cache.fork(prefix));
    EXPECT_EQ(cache.bytes().all(), one.all()) << recipe << ": forks that have not gone on";
    for (int i = 0; i < kForks; ++i) {
      auto step = cache.reserve({{forks[i], 1 + i % 40, false}});
      ASSERT_TRUE(step.ok());
      ASSERT_TRUE((*step)->commit().ok());
    }
    EXPECT_EQ(cache.bytes().sealed, one.sealed) << recipe;
    EXPECT_EQ(cache.bytes().sink, one.sink) << recipe;
    EXPECT_EQ(cache.bytes().all(), one.all() + kForks * tail) << recipe;
    // Memory comes in whole slabs, hence the factor of 2.
    EXPECT_LE(cache.bytes_reserved(), reserved + 2 * kForks * tail) << recipe;
    for (const SequenceId fork : forks) cache.free(fork);
    EXPECT_EQ(cache.bytes().all(), one.all()) << recipe;
  }
}

// Checks the maximum bytes of a sequence that grows by prompts and decode steps, for any division into steps.
void expect_largest(const char* recipe, const Geometry& geometry) {
  const auto plan = plan_on(std::make_shared<HostPages>(), recipe, geometry);
  for (const int step_tokens : {1, 77, 512}) {
    for (const int n_tokens : {100, 1000, 3000}) {
      Cache cache(plan, 0);
      const SequenceId sequence = cache.add();
      std::int64_t most = 0;
      while (cache.length(sequence) < n_tokens) {
        const int first = cache.length(sequence);
        auto step = cache.reserve(
            {{sequence, std::min(step_tokens, n_tokens - first), /*is_prompt=*/first < n_tokens / 2}});
        ASSERT_TRUE(step.ok());
        most = std::max(most, cache.page_bytes_in_use());
        ASSERT_TRUE((*step)->commit().ok());
      }
      const std::int64_t predicted = largest_device_bytes(plan, n_tokens, {1, step_tokens});
      // Steps that end with pages have no observers. In layers with a sliding window, the bound counts sealed
      // pages in addition to the longest tail.
      std::int64_t slack = 2 * static_cast<std::int64_t>(observer_layout(*plan).bytes);
      for (const LayersOfEntry& group : layer_groups(*plan))
        slack += static_cast<std::int64_t>(plain_layout(*plan, kPageTokens, group.layers).bytes) *
                 ((group.rules.sliding_window > 0 ? 4 : 2) + plan->recipe.prefill / kPageTokens - 1);
      EXPECT_LE(most, predicted) << recipe << ", " << n_tokens << " in steps of " << step_tokens;
      EXPECT_LE(predicted, most + slack) << recipe << ", " << n_tokens << " in steps of " << step_tokens;
    }
  }
}

// Grows sequences of equal length in steps. A random division gives each sequence a single decoded token or a
// part of a prompt of any size.
void expect_largest_of_batch(const char* recipe, const Geometry& geometry, const Batch& batch) {
  constexpr int kTokens = 1000;
  const auto plan = plan_on(std::make_shared<HostPages>(), recipe, geometry);
  Cache cache(plan, 0);
  std::vector<SequenceId> sequences;
  sequences.reserve(batch.n_seqs);
  for (int i = 0; i < batch.n_seqs; ++i) sequences.push_back(cache.add());
  std::mt19937 random(1);
  std::int64_t most = 0;
  const auto grows = [&](SequenceId sequence) { return cache.length(sequence) < kTokens; };
  while (std::ranges::any_of(sequences, grows)) {
    std::vector<StepSlice> slices;
    int left = batch.step_tokens;
    for (const SequenceId sequence : sequences) {
      if (!grows(sequence)) continue;
      const int missing = kTokens - cache.length(sequence);
      const bool is_prompt = left > 0 && random() % 2 == 0;
      const int n = is_prompt ? std::min<int>({missing, left, 1 + static_cast<int>(random() % 150)}) : 1;
      left -= is_prompt ? n : 0;
      slices.push_back({sequence, n, is_prompt});
    }
    auto step = cache.reserve(slices);
    ASSERT_TRUE(step.ok());
    most = std::max(most, cache.page_bytes_in_use());
    ASSERT_TRUE((*step)->commit().ok());
  }
  EXPECT_LE(most, largest_device_bytes(plan, kTokens, batch)) << recipe;
  EXPECT_LE(most, batch.n_seqs * largest_device_bytes(plan, kTokens, {1, batch.step_tokens})) << recipe;
}

TEST(LargestDeviceBytes, AreEnoughForStepsThatABatchShares) {
  for (const char* recipe :
       {"bf16", kSinkRecipe, "k=ch4g64,v=tok4g64,window=128,prefill=256", "kvlinc-2bit"}) {
    for (const Batch& batch : {Batch{7, 7}, Batch{5, 300}, Batch{20, 600}}) {
      expect_largest_of_batch(recipe, testing::small_geometry(), batch);
      expect_largest_of_batch(recipe, sliding_geometry(), batch);
    }
  }
  // A sequence needs one tail page for the tokens it holds, and one for the next tokens. The step's own
  // tokens count once for all sequences.
  const auto plan = plan_on(std::make_shared<HostPages>(), "k=ch4g64,v=tok4g64");
  const auto of = [&](int n_seqs, int step_tokens) {
    return largest_device_bytes(plan, 2000, {n_seqs, step_tokens});
  };
  EXPECT_EQ(of(100, 1), 100 * of(1, 1));
  for (const int n : {8, 100}) {
    EXPECT_LE(of(n, 512) - n * of(1, 1), (n + 512 / 128) * plain_bytes(*plan));
    EXPECT_LT(of(n, 512), n * of(1, 512));
  }
}

TEST(LargestDeviceBytes, AreEnoughForEveryStepAndNotFarFromTheMost) {
  for (const char* recipe : {"bf16", kSinkRecipe, "k=ch4g64,v=tok4g64,sink=128,window=256,prefill=256",
                             "k=tok8g64,v=tok4g64,k@0.0=tok2g64,v@1.1=tok2g64", "kvlinc-2bit",
                             "k=ch4g64,v=tok2g64,protect=0.1,sink=4,window=128"}) {
    expect_largest(recipe, testing::small_geometry());
    expect_largest(recipe, sliding_geometry());
  }
  for (const char* recipe : {"bf16", kSinkRecipe})
    expect_largest(recipe, testing::unlike_layers(128, 64, 1, 2));
  const auto plan = plan_on(std::make_shared<HostPages>(), "bf16");
  EXPECT_EQ(largest_device_bytes(plan, 0, {1, 512}), 0);
  EXPECT_EQ(largest_device_bytes(plan, 129, {1, 512}),
            2 * 128 * 2 * 2 * 2 * 64 * 2);  // The tail has two whole pages.
}

}  // namespace
}  // namespace kvant
