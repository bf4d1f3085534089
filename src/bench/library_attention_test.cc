#include "bench/library_attention.h"

#include <gtest/gtest.h>

#include "bench/cache_attention.h"

namespace kvant {
namespace {

constexpr AttentionHeads kLibraryShape{6, 2, 64};

// Returns the bits per value of n tokens. A sealed page has 128 x 64 codes of 4 bits. A page of K adds two
// f16 per channel, and a page of V adds two f16 per token. The tokens of the last page are BF16.
double bits_of_length(int n) {
  const int sealed = n / kPageTokens, tail = n % kPageTokens;
  const double codes = 4.0 * 128 * 64;
  return (sealed * (2 * codes + 32.0 * 64 + 32.0 * 128) + tail * 2 * 16.0 * 64) / (2.0 * 64 * n);
}

TEST(LibraryAttention, BitsAreTheMeanOverAPageAsInTheEngine) {
  for (const int context : {100, 900, 1024, 1151}) {
    const auto plan = plan_without_model(*parse_recipe("k=ch4g128,v=tok4g128"), kLibraryShape, context, 0,
                                         PageOrder::canonical);
    ASSERT_TRUE(plan.ok());
    const auto library = LibraryAttention::make(*plan, context);
    const auto engine = CacheAttention::make(*plan, make_reference_backend(), context, 1);
    ASSERT_TRUE(library.ok() && engine.ok());
    const int first = std::max(context - kPageTokens, 0) + 1;
    double expected = 0;
    for (int n = first; n <= context; ++n) expected += bits_of_length(n) / (context - first + 1);
    EXPECT_NEAR((*library)->bits(), expected, 1e-9) << context;
    // The engine's tail has memory for a few more tokens than it holds, which matter at 100 tokens.
    if (context > 100) {
      EXPECT_NEAR((*library)->bits(), (*engine)->bits(), 0.4) << context;
    }
  }
}

}  // namespace
}  // namespace kvant
