#include "cache/batch_pages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/page_size.h"

namespace kvant {
namespace {

// Finds the maximum by trying all ways to distribute the tokens of a step.
std::int64_t most_dealt(int n_tokens, int held, int n_seqs, int step_tokens) {
  if (n_seqs == 0) return 0;
  std::int64_t most = 0;
  for (int tokens = 0; tokens <= step_tokens; ++tokens) {
    const int length = std::min(n_tokens, held + std::max(tokens, 1));
    const std::int64_t pages = (length + kPageTokens - 1) / kPageTokens;
    most = std::max(most, pages + most_dealt(n_tokens, held, n_seqs - 1, step_tokens - tokens));
  }
  return most;
}

TEST(BatchPages, AreThoseOfTheWorstWayToDealAStepOut) {
  for (const int held : {0, 1, 100, 127, 128, 255}) {
    for (const int n_tokens : {60, 200, 1000}) {
      for (const int step_tokens : {1, 2, 29, 130, 300}) {
        for (const int n_seqs : {1, 2}) {
          EXPECT_EQ(most_batch_pages(n_tokens, held, {n_seqs, step_tokens}),
                    most_dealt(n_tokens, held, n_seqs, step_tokens))
              << n_seqs << " of " << held << " and " << step_tokens << " up to " << n_tokens;
        }
      }
      EXPECT_EQ(most_batch_pages(n_tokens, held, {3, 140}), most_dealt(n_tokens, held, 3, 140));
    }
  }
}

}  // namespace
}  // namespace kvant
