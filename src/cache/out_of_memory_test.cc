// Fails each allocation of a step, a fork, a truncation and a fill in turn, including allocations of the C++
// library.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "cache/cache_fixture.h"
#include "cache/device_layout.h"
#include "cache/synthetic_sequence.h"
#include "cache/testing/host_pages.h"

namespace {

long allocations_before_failure = -1;  // A negative number means that no allocation fails.

bool allowed() {
  return allocations_before_failure < 0 || allocations_before_failure-- > 0;
}

}  // namespace

// The function is not inlined, because the compiler must see new and delete as a pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = allowed() ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
  const auto a = static_cast<std::size_t>(alignment);
  return allowed() ? std::aligned_alloc(a, (bytes + a - 1) / a * a) : nullptr;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allowed() ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}

namespace kvant {
namespace {

using testing::contents;

// Runs `action` with the n-th allocation failing, for n = 0, 1, ... until it succeeds. After each failure
// the sequence must be as it was.
template <class Action>
void fail_each_allocation(Cache& cache, SequenceId s, const Action& action) {
  const std::string before = contents(cache, s);
  const std::int64_t bytes = cache.bytes().all();
  for (long n = 0; n < 100000; ++n) {
    allocations_before_failure = n;
    const bool ok = action();
    allocations_before_failure = -1;
    if (ok) {
      EXPECT_GT(n, 3);
      return;
    }
    ASSERT_EQ(contents(cache, s), before) << "allocation " << n;
    ASSERT_EQ(cache.bytes().all(), bytes) << "allocation " << n;
  }
  FAIL() << "never succeeded";
}

struct MemoryCase {
  const char* recipe;
  bool on_device;
  int sliding_window = 0;  // tokens, in layer 1
};

class OutOfMemory : public ::testing::TestWithParam<MemoryCase> {
 protected:
  static PlacedPlan plan() {
    Geometry geometry = testing::small_geometry(/*head_dim=*/64, 2, 1, 2);
    geometry.sliding_window[1] = GetParam().sliding_window;
    const auto plan = testing::plan_for(GetParam().recipe, geometry);
    if (!GetParam().on_device) return plan;
    return place_on(std::make_shared<testing::HostPages>(), plan).value();
  }
};

INSTANTIATE_TEST_SUITE_P(
    Places, OutOfMemory,
    ::testing::Values(MemoryCase{"k=ch4g128,v=tok4g128,sink=4,window=128", false},
                      MemoryCase{"k=ch2g128,v=tok2g128,protect=0.05,correction=relative", false},
                      MemoryCase{"k=ch2g128,v=tok2g128,window=128,protect=0.05,evict=0.5", false},
                      MemoryCase{"k=ch4g128,v=tok4g128,sink=4,window=128", true},
                      MemoryCase{"k=ch4g128,v=tok4g128,sink=4", true, 100},
                      MemoryCase{"k=ch2g128,v=tok2g128,window=128,protect=0.05", true},
                      MemoryCase{"k=ch2g128,v=tok2g128,correction=relative", true}));

TEST_P(OutOfMemory, AtAnyAllocationOfAStepLeavesTheSequenceAsItWas) {
  Cache cache(plan(), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(fill_synthetic(cache, s, 200, 1).ok());
  std::vector<StepSlice> slices;
  std::unique_ptr<Step> open;
  fail_each_allocation(cache, s, [&] {
    try {
      slices = {{s, 700, false}};
    } catch (const std::bad_alloc&) {
      return false;
    }
    Result<std::unique_ptr<Step>> step = cache.reserve(std::move(slices));
    if (step.ok()) open = std::move(*step);
    return step.ok();
  });
  for (int layer = 0; layer < 2 && !GetParam().on_device; ++layer)
    testing::run_layer_without_attention(*open, layer);
  ASSERT_TRUE(open->commit().ok());
  EXPECT_EQ(cache.length(s), 900);
}

TEST_P(OutOfMemory, AtAnyAllocationOfAForkOrATruncationLeavesTheSequenceAsItWas) {
  Cache cache(plan(), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(fill_synthetic(cache, s, 900, 1).ok());
  fail_each_allocation(cache, s, [&] {
    const Result<SequenceId> fork = cache.fork(s);
    if (fork.ok()) cache.free(*fork);
    return fork.ok();
  });
  const Recipe& recipe = cache.plan().recipe;
  const bool opens =
      recipe.correction == Correction::none && recipe.evict == 0 && GetParam().sliding_window == 0;
  const int cut = opens ? 77 : 0;
  fail_each_allocation(cache, s, [&] { return cache.truncate(s, cut).ok(); });
  EXPECT_EQ(cache.length(s), cut);
}

TEST_P(OutOfMemory, AtAnyAllocationOfAFillLeavesAnEmptySequence) {
  Cache cache(plan(), 0);
  const SequenceId s = cache.add();
  fail_each_allocation(cache, s, [&] {
    const Status filled = fill_synthetic(cache, s, 300, 1);
    EXPECT_TRUE(filled.ok() || filled.error().is_shortage) << filled.error().message;
    return filled.ok();
  });
  EXPECT_EQ(cache.length(s), 300);
}

}  // namespace
}  // namespace kvant
